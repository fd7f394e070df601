// y = x W^T for packed W (packed.hpp): one kind of micro-tile, from one row to hundreds.
//
// A micro-tile keeps R rows x 32 columns of sums in registers and walks K once, so every output is one
// float32 sum over K in ascending order: its bits do not depend on the batch, on the row's place in it, or
// on the number of threads, which divide N only. (Register blocking as in Goto & van de Geijn 2008, without
// their split of K.) Few rows wait for memory, and a panel at a time is one stream of it that never starts
// anew; several panels at once hide more of the multiply's latency and read slower.
#pragma once
#include "grouped.hpp"

namespace baton {

constexpr int kTileRows = 12;
constexpr int kTilePanels = 2;  // at once, on AMX
constexpr int kTileColumns = kPanel * kTilePanels;

// Elements between two rows of activations: never a multiple of 4 KiB, which would put all rows of a
// tile into the same few sets of the L1 cache.
template <class Type>
size_t row_stride(size_t columns) {
  const size_t line = kLine / sizeof(typename Type::Element);
  const size_t lines = (columns + line - 1) / line;
  return (lines | 1) * line;
}

// sums [R][kTileColumns] = x [R, K] times a panel.
template <class Type, int R>
void multiply_tile(const typename Type::Element* x, size_t stride, const typename Type::Element* panel,
                   int depth, float* sums) {
  constexpr int pair = Type::pair;
  constexpr int line = kLine / sizeof(typename Type::Element);
  constexpr int ahead = 2048 / sizeof(typename Type::Element);
  __m512 sum[R][2];
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) sum[r][0] = sum[r][1] = _mm512_setzero_ps();
  for (int k = 0; k < depth; k += pair) {
    const typename Type::Element* at = panel + size_t(k) * kPanel;
    const typename Type::Wide weight[2] = {Type::load(at), Type::load(at + line)};
    _mm_prefetch(at + ahead, _MM_HINT_T0);
    _mm_prefetch(at + ahead + line, _MM_HINT_T0);
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      const typename Type::Wide value = Type::broadcast(x + r * stride + k);
      sum[r][0] = Type::multiply_add(sum[r][0], weight[0], value);
      sum[r][1] = Type::multiply_add(sum[r][1], weight[1], value);
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
    _mm512_store_ps(sums + r * kTileColumns, sum[r][0]);
    _mm512_store_ps(sums + r * kTileColumns + kLanes, sum[r][1]);
  }
}

template <class Type>
using TileFunction = void (*)(const typename Type::Element*, size_t, const typename Type::Element*, int,
                              float*);

template <class Type>
TileFunction<Type> tile_function(int rows) {
  constexpr TileFunction<Type> functions[kTileRows] = {
      multiply_tile<Type, 1>, multiply_tile<Type, 2>,  multiply_tile<Type, 3>,  multiply_tile<Type, 4>,
      multiply_tile<Type, 5>, multiply_tile<Type, 6>,  multiply_tile<Type, 7>,  multiply_tile<Type, 8>,
      multiply_tile<Type, 9>, multiply_tile<Type, 10>, multiply_tile<Type, 11>, multiply_tile<Type, 12>};
  return functions[rows - 1];
}

template <class Type>
int panels_at_once(int rows) {
  return uses_tiles<Type>() && !Type::grouped && rows <= 16 ? kTilePanels : 1;
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
  tile_function<Type>(height)(x, stride, panel, depth, sums);
}

// A whole product of few rows straight from int8; false where it is better to expand the panel first.
template <class Type>
bool multiply_stored(const typename Type::Element* x, size_t stride, int rows, const Packed<Type>& weight,
                     int panel, float* sums) {
#ifdef BATON_BFLOAT16
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
#endif
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
