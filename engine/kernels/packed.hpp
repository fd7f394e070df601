// Where the weights of a linear lie.
//
// [panel][K / pair][32 columns][pair], a panel being 32 output columns; columns past N are zero, and K is
// rounded up with zeros to a multiple of 16 pairs. Panels start on 64-byte lines. (GroupedInt8 stores
// the same in its own way: grouped.hpp.)
#pragma once
#include <algorithm>

#include "memory.hpp"
#include "numeric.hpp"
#include "phases.hpp"
#include "tiles.hpp"

namespace baton {

constexpr int kPanel = 32;

template <class Type>
struct Packed {
  using Stored = typename Type::Stored;
  Stored* data = nullptr;
  int rows = 0;                                                          // N, the outputs
  int columns = 0;                                                       // K, the inputs; a multiple of 16
  int depth() const { return int(round_up(columns, 16 * Type::pair)); }  // zeros from K to here
  int panels() const { return (rows + kPanel - 1) / kPanel; }
  size_t panel_elements() const { return size_t(depth()) * kPanel; }
  size_t panel_stored() const { return Type::panel_stored(depth()); }
  size_t stored() const { return size_t(panels()) * panel_stored(); }
  Stored* panel(int index) const { return data + index * panel_stored(); }
};

// Which row of W [rows, K] is a column of a panel; -1 past the last. With `halves`, W is [gate; up],
// rows / 2 each, and a panel holds 16 columns of gate beside the same 16 of up, so that one tile has both
// operands of SiLU(gate) * up.
inline int row_of_column(int rows, bool halves, int panel, int column) {
  const int row = halves ? panel * 16 + column % 16 : panel * kPanel + column;
  if (row >= (halves ? rows / 2 : rows)) return -1;
  return halves ? row + column / 16 * (rows / 2) : row;
}

// The beginning of what a thread will read next, for it to fetch into its caches while it waits.
struct Ahead {
  static constexpr size_t kBytesMax = 128 << 10;
  static constexpr size_t kAtOnce = 8 * kLine;  // short, for a waiter to see soon that its wait is over

  const char* at = nullptr;
  const char* end = nullptr;

  // False: all is on its way.
  bool fetch() {
    if (at >= end) return false;
    for (const char* line = at; line < at + kAtOnce; line += kLine) _mm_prefetch(line, _MM_HINT_T0);
    at += kAtOnce;
    return true;
  }
};

// What thread `index` of `threads` reads first of a linear.
template <class Type>
Ahead ahead_of(const Packed<Type>& weight, int index, int threads) {
  const Range mine = share_of(weight.panels(), index, threads);
  const char* first = reinterpret_cast<const char*>(weight.panel(mine.first));
  const char* last = reinterpret_cast<const char*>(weight.panel(mine.last));
  return {first, std::min(first + Ahead::kBytesMax, last)};
}

// Packs some panels of W [N, K] row-major.
template <class Type>
void pack(const Packed<Type>& to, const typename Type::Element* from, bool halves, Range panels) {
  constexpr int pair = Type::pair;
  for (int panel = panels.first; panel < panels.last; ++panel) {
    for (int column = 0; column < kPanel; ++column) {
      const int row = row_of_column(to.rows, halves, panel, column);
      for (int k = 0; k < to.depth(); ++k) {
        to.panel(panel)[(size_t(k / pair) * kPanel + column) * pair + k % pair] =
            row >= 0 && k < to.columns ? from[size_t(row) * to.columns + k] : typename Type::Element(0);
      }
    }
  }
}

// Row `row` of W, not packed in halves, out of its packed form: how a tied embedding is looked up.
template <class Type>
void unpack_row(const Packed<Type>& from, int row, float* to) {
  constexpr int pair = Type::pair;
  const typename Type::Element* base = from.panel(row / kPanel) + size_t(row % kPanel) * pair;
  for (int k = 0; k < from.columns; k += pair) {
    for (int half = 0; half < pair; ++half) to[k + half] = Type::widen_one(base[size_t(k) * kPanel + half]);
  }
}

}  // namespace baton
