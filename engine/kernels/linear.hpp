// y = x W^T for packed W (packed.hpp): one kind of micro-tile, from one row to hundreds.
//
// A micro-tile keeps R rows x 32 P columns of sums in registers and walks K once, so every output is
// one float32 sum over K in ascending order: its bits do not depend on the batch, on the row's place in
// it, on P, or on the number of threads, which divide N only. (Register blocking as in Goto & van de
// Geijn 2008, without their split of K.)
#pragma once
#include "grouped.hpp"

namespace baton {

constexpr int kTileRows = 12;
constexpr int kTilePanels = 4;
constexpr int kTileColumns = kPanel * kTilePanels;

// Elements between two rows of activations: never a multiple of 4 KiB, which would put all rows of a
// tile into the same few sets of the L1 cache.
template <class Type>
size_t row_stride(size_t columns) {
  const size_t line = kLine / sizeof(typename Type::Element);
  const size_t lines = (columns + line - 1) / line;
  return (lines | 1) * line;
}

// sums [R][kTileColumns] = x [R, K] times P neighbouring panels.
template <class Type, int R, int P>
void multiply_tile(const typename Type::Element* x, size_t stride, const typename Type::Element* panel,
                   size_t panel_elements, int depth, float* sums) {
  constexpr int pair = Type::pair;
  constexpr int line = kLine / sizeof(typename Type::Element);
  constexpr int ahead = 2048 / sizeof(typename Type::Element);
  __m512 sum[R][2 * P];
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < 2 * P; ++c) sum[r][c] = _mm512_setzero_ps();
  }
  for (int k = 0; k < depth; k += pair) {
    typename Type::Wide weight[2 * P];
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
      const typename Type::Element* at = panel + p * panel_elements + size_t(k) * kPanel;
      weight[2 * p] = Type::load(at);
      weight[2 * p + 1] = Type::load(at + line);
      _mm_prefetch(at + ahead, _MM_HINT_T0);
      _mm_prefetch(at + ahead + line, _MM_HINT_T0);
    }
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      const typename Type::Wide value = Type::broadcast(x + r * stride + k);
#pragma GCC unroll 8
      for (int c = 0; c < 2 * P; ++c) sum[r][c] = Type::multiply_add(sum[r][c], weight[c], value);
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int c = 0; c < 2 * P; ++c) _mm512_store_ps(sums + r * kTileColumns + c * kLanes, sum[r][c]);
  }
}

template <class Type>
using TileFunction = void (*)(const typename Type::Element*, size_t, const typename Type::Element*, size_t,
                              int, float*);

// Tiles of few rows take several panels at once: enough independent sums to hide the latency of the
// multiply. nullptr where the sums would not fit into 32 registers.
template <class Type, int R>
constexpr TileFunction<Type> tile_of_panels(int panels) {
  if (panels == 1) return multiply_tile<Type, R, 1>;
  if constexpr (R <= 4) {
    if (panels == 2) return multiply_tile<Type, R, 2>;
  }
  if constexpr (R <= 2) {
    if (panels == 3) return multiply_tile<Type, R, 3>;
    if (panels == 4) return multiply_tile<Type, R, 4>;
  }
  return nullptr;
}

template <class Type>
TileFunction<Type> tile_function(int rows, int panels) {
  switch (rows) {
    case 1:
      return tile_of_panels<Type, 1>(panels);
    case 2:
      return tile_of_panels<Type, 2>(panels);
    case 3:
      return tile_of_panels<Type, 3>(panels);
    case 4:
      return tile_of_panels<Type, 4>(panels);
    case 5:
      return tile_of_panels<Type, 5>(panels);
    case 6:
      return tile_of_panels<Type, 6>(panels);
    case 7:
      return tile_of_panels<Type, 7>(panels);
    case 8:
      return tile_of_panels<Type, 8>(panels);
    case 9:
      return tile_of_panels<Type, 9>(panels);
    case 10:
      return tile_of_panels<Type, 10>(panels);
    case 11:
      return tile_of_panels<Type, 11>(panels);
    default:
      return tile_of_panels<Type, 12>(panels);
  }
}

template <class Type>
int panels_at_once(int rows) {
  if (Type::grouped) return 1;
  if (uses_tiles<Type>()) return rows <= 16 ? 2 : 1;
  return rows <= 2 ? 4 : rows <= 4 ? 2 : 1;
}

// The rows of the tile that begins at `first`: equal shares on vectors, full tiles on AMX.
template <class Type>
int tile_height(int rows, int first) {
  if (uses_tiles<Type>()) return std::min(rows - first, 32);
  const int tiles = (rows - first + kTileRows - 1) / kTileRows;
  return (rows - first + tiles - 1) / tiles;
}

// One tile of up to `height` rows, by `width` panels.
template <class Type>
void run_tile(int height, int width, const typename Type::Element* x, size_t stride,
              const typename Type::Element* panel, size_t panel_elements, int depth, float* sums,
              bool first) {
#ifdef BATON_AMX
  if constexpr (Type::pair == 2) {
    if (tiles_allowed()) {
      const auto low = width == 2 ? multiply_low<2> : multiply_low<1>;
      return low(x, stride, panel, panel_elements, depth, sums, kTileColumns, first);
    }
  }
#endif
  tile_function<Type>(height, width)(x, stride, panel, panel_elements, depth, sums);
}

// A whole product of few rows straight from int8; false where it is better to expand the panel first.
template <class Type>
bool multiply_stored(const typename Type::Element* x, size_t stride, int rows, const Packed<Type>& weight,
                     int panel, float* sums) {
  if constexpr (Type::grouped) {
#ifdef BATON_AMX
    if (tiles_allowed()) {
      if (rows <= 16)
        multiply_low_grouped(x, stride, weight.panel(panel), weight.depth(), sums, kTileColumns);
      return rows <= 16;
    }
#endif
    if (rows <= kGroupedRows)
      grouped_function(rows)(x, stride, weight.panel(panel), weight.depth(), sums, kTileColumns);
    return rows <= kGroupedRows;
  }
  return false;
}

constexpr int kBlockRows = 512;  // at once; their sums of a panel wait on the stack

// x [rows, K] times `panels` of W. finish(row, panel, sums [32]) is the epilogue: it gets each row's 32
// sums of a panel once, panels of a row in ascending order. `expanded` has room for one panel where the
// weights are grouped.
template <class Type, class Finish>
void multiply(const typename Type::Element* x, size_t stride, int rows, const Packed<Type>& weight,
              Range panels, typename Type::Element* expanded, const Finish& finish) {
  using Base = typename Type::Base;
  alignas(kLine) float sums[(kBlockRows + kTileRowsPadding) * kPanel];
  const int group = panels_at_once<Type>(rows);
  for (int panel = panels.first; panel < panels.last; panel += group) {
    const int width = std::min(group, panels.last - panel);
    const auto finish_rows = [&](int first, int height, int columns) {
      for (int row = 0; row < height; ++row) {
        for (int p = 0; p < width; ++p) finish(first + row, panel + p, sums + row * columns + p * kPanel);
      }
    };
    if (multiply_stored<Type>(x, stride, rows, weight, panel, sums)) {
      finish_rows(0, rows, kTileColumns);
      continue;
    }
    const typename Type::Element* ready = expanded;
    if constexpr (Type::grouped) {
      expand_panel(weight.panel(panel), weight.depth(), expanded);
    } else {
      ready = weight.panel(panel);
    }
#ifdef BATON_AMX
    if constexpr (Type::pair == 2) {
      if (rows > 16 && tiles_allowed()) {
        for (int first = 0; first < rows; first += kBlockRows) {
          const int height = std::min(kBlockRows, rows - first);
          multiply_blocked(x + first * stride, stride, height, ready, weight.depth(), sums,
                           weight.panel(panel + 1), weight.panel_stored() * sizeof(typename Type::Stored));
          finish_rows(first, height, kPanel);
        }
        continue;
      }
    }
#endif
    for (int first = 0, height; first < rows; first += height) {
      height = tile_height<Base>(rows, first);
      run_tile<Base>(height, width, x + first * stride, stride, ready, weight.panel_elements(),
                     weight.depth(), sums, first == 0);
      finish_rows(first, height, kTileColumns);
    }
  }
}

}  // namespace baton
