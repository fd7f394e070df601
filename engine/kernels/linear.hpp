// y = x W^T for packed W: one kind of micro-tile, from one row to hundreds.
//
// Packed layout: [panel][K / pair][32 columns][pair], a panel being 32 output columns; columns past N
// are zero, and K is rounded up with zeros to a multiple of 16 pairs. Panels start on 64-byte lines.
//
// A micro-tile keeps R rows x 32 P columns of sums in registers and walks K once, so every output is
// one float32 sum over K in ascending order: its bits do not depend on the batch, on the row's place in
// it, on P, or on the number of threads, which divide N only. (Register blocking as in Goto & van de
// Geijn 2008, without their split of K.)
#pragma once
#include <algorithm>

#include "memory.hpp"
#include "numeric.hpp"
#include "threads.hpp"
#include "tiles.hpp"

namespace baton {

constexpr int kPanel = 32;
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

template <class Type>
struct Packed {
  typename Type::Element* data = nullptr;
  int rows = 0;                                                          // N, the outputs
  int columns = 0;                                                       // K, the inputs; a multiple of 16
  int depth() const { return int(round_up(columns, 16 * Type::pair)); }  // zeros from K to here
  int panels() const { return (rows + kPanel - 1) / kPanel; }
  size_t panel_elements() const { return size_t(depth()) * kPanel; }
  size_t elements() const { return size_t(panels()) * panel_elements(); }
};

// Packs W [N, K] row-major. With `halves`, W is [gate; up], N / 2 rows each, and a panel holds 16
// columns of gate beside the same 16 of up, so that one tile has both operands of SiLU(gate) * up.
template <class Type>
void pack(const Packed<Type>& to, const typename Type::Element* from, bool halves, Range panels) {
  constexpr int pair = Type::pair;
  for (int panel = panels.first; panel < panels.last; ++panel) {
    typename Type::Element* out = to.data + panel * to.panel_elements();
    for (int column = 0; column < kPanel; ++column) {
      const int row =
          halves ? panel * 16 + column % 16 + column / 16 * (to.rows / 2) : panel * kPanel + column;
      const bool real = halves ? panel * 16 + column % 16 < to.rows / 2 : row < to.rows;
      for (int k = 0; k < to.depth(); ++k) {
        out[(size_t(k / pair) * kPanel + column) * pair + k % pair] =
            real && k < to.columns ? from[size_t(row) * to.columns + k] : typename Type::Element(0);
      }
    }
  }
}

// Row `row` of W out of its packed form: how a tied embedding is looked up.
template <class Type>
void unpack_row(const Packed<Type>& from, int row, float* to) {
  constexpr int pair = Type::pair;
  const typename Type::Element* base =
      from.data + size_t(row / kPanel) * from.panel_elements() + size_t(row % kPanel) * pair;
  for (int k = 0; k < from.columns; k += pair) {
    for (int half = 0; half < pair; ++half) to[k + half] = Type::widen_one(base[size_t(k) * kPanel + half]);
  }
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

// One tile of `height` rows from row `first` of `rows`, by `width` panels.
template <class Type>
void run_tile(int height, int width, const typename Type::Element* x, size_t stride, int first, int rows,
              const typename Type::Element* panel, const Packed<Type>& weight, float* sums) {
  x += first * stride;
#ifdef BATON_AMX
  if constexpr (Type::pair == 2) {
    if (tiles_allowed()) {
      if (height > 16) {
        const int tiles = (rows + 31) / 32;
        const int lines = (32 + tiles - 1) / tiles;
        const int line = std::min(first / 32 * lines, 32 - lines);
        const uint16_t* next = tiles == 1 ? panel + 2048 : panel + weight.panel_elements();
        return multiply_high(x, stride, panel, weight.depth(), sums, kTileColumns, next + line * 32, lines);
      }
      const auto low = width == 2 ? multiply_low<2> : multiply_low<1>;
      return low(x, stride, panel, weight.panel_elements(), weight.depth(), sums, kTileColumns, first == 0);
    }
  }
#endif
  tile_function<Type>(height, width)(x, stride, panel, weight.panel_elements(), weight.depth(), sums);
}

// x [rows, K] times `panels` of W. finish(row, panel, sums [32]) is the epilogue: it gets each row's 32
// sums of a panel once, panels of a row in ascending order.
template <class Type, class Finish>
void multiply(const typename Type::Element* x, size_t stride, int rows, const Packed<Type>& weight,
              Range panels, const Finish& finish) {
  alignas(kLine) float sums[kTileRowsPadding * kTileColumns];
  const int group = panels_at_once<Type>(rows);
  for (int panel = panels.first; panel < panels.last; panel += group) {
    const int width = std::min(group, panels.last - panel);
    for (int first = 0, height; first < rows; first += height) {
      height = tile_height<Type>(rows, first);
      run_tile<Type>(height, width, x, stride, first, rows, weight.data + panel * weight.panel_elements(), weight,
                     sums);
      for (int row = 0; row < height; ++row) {
        for (int p = 0; p < width; ++p) {
          finish(first + row, panel + p, sums + row * kTileColumns + p * kPanel);
        }
      }
    }
  }
}

}  // namespace baton
