// The products of bfloat16 on AMX, where the processor has it: tiles of 16 rows x 16 columns x 32 deep.
//
// tdpbf16ps eats the packed layout as it is. Rows past the last are computed from whatever lies behind
// x and never read (their buffers end in kTileRowsPadding spare rows): one tile shape, so a row's bits
// do not depend on how many there are. The instruction adds even and odd products apart, so its
// results are not those of vdpbf16ps: a machine uses one or the other for everything.
#pragma once
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "numeric.hpp"

namespace baton {

constexpr int kTileRowsPadding = 32;

#ifdef BATON_AMX

// Linux lends the tile registers on request, once per process.
inline bool tiles_allowed() {
  constexpr int request_permission = 0x1023, tile_data = 18;
  static const bool allowed = syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
  return allowed;
}

// Every thread, before its first tile of a step; close_tiles after its last.
inline void open_tiles() {
  struct alignas(64) {
    uint8_t palette, start_row, reserved[14];
    uint16_t column_bytes[16];
    uint8_t rows[16];
  } config = {1, 0, {}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};
  if (tiles_allowed()) _tile_loadconfig(&config);
}

inline void close_tiles() {
  if (tiles_allowed()) _tile_release();
}

inline void clear_sums() {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}

// Sums of 2 x 2 tiles between registers and [32][columns]; of one row of tiles with kRows = 1.
template <int kRows>
void load_sums(const float* sums, size_t columns) {
  _tile_loadd(0, sums, columns * 4);
  _tile_loadd(1, sums + 16, columns * 4);
  if constexpr (kRows == 2) {
    _tile_loadd(2, sums + 16 * columns, columns * 4);
    _tile_loadd(3, sums + 16 * columns + 16, columns * 4);
  }
}

template <int kRows>
void store_sums(float* sums, size_t columns) {
  _tile_stored(0, sums, columns * 4);
  _tile_stored(1, sums + 16, columns * 4);
  if constexpr (kRows == 2) {
    _tile_stored(2, sums + 16 * columns, columns * 4);
    _tile_stored(3, sums + 16 * columns + 16, columns * 4);
  }
}

inline void fetch_ahead(const uint16_t* panel) {
  constexpr int ahead = 4096 / sizeof(uint16_t), line = 32;
  for (int i = 0; i < 32; ++i) _mm_prefetch(panel + ahead + i * line, _MM_HINT_T0);
}

// sums [16][columns] of up to 16 rows and P panels (1 or 2).
template <int P>
void multiply_low(const uint16_t* x, size_t stride, const uint16_t* panel, size_t panel_elements, int depth,
                  float* sums, size_t columns, bool fetch) {
  clear_sums();
  for (int k = 0; k < depth; k += 32, panel += 32 * 32) {
    _tile_loadd(4, x + k, stride * 2);
    _tile_loadd(6, panel, 128);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, panel + 32, 128);
    _tile_dpbf16ps(1, 4, 7);
    if (fetch) fetch_ahead(panel);
    if constexpr (P == 2) {
      _tile_loadd(6, panel + panel_elements, 128);
      _tile_dpbf16ps(2, 4, 6);
      _tile_loadd(7, panel + panel_elements + 32, 128);
      _tile_dpbf16ps(3, 4, 7);
      if (fetch) fetch_ahead(panel + panel_elements);
    }
  }
  _tile_stored(0, sums, columns * 4);
  _tile_stored(1, sums + 16, columns * 4);
  if constexpr (P == 2) {
    _tile_stored(2, sums + 32, columns * 4);
    _tile_stored(3, sums + 48, columns * 4);
  }
}

// What a tile fetches into L2 while it computes: `lines` cache lines per 32 of K, each time `step` bytes
// further. When several row tiles pass over a panel, each fetches its share of the next one.
struct Fetch {
  const uint8_t* at;
  int lines;
  size_t step;
};

// sums [16 kRows][columns] of up to 16 kRows rows and one panel, added to what is there if `resume`. x
// passes by the L1 cache, which keeps the panel.
template <int kRows>
void multiply_high(const uint16_t* x, size_t stride, const uint16_t* panel, int depth, float* sums,
                   size_t columns, bool resume, Fetch fetch) {
  resume ? load_sums<kRows>(sums, columns) : clear_sums();
  for (int k = 0; k < depth; k += 32, panel += 32 * 32) {
    _tile_stream_loadd(4, x + k, stride * 2);
    if constexpr (kRows == 2) _tile_stream_loadd(5, x + 16 * stride + k, stride * 2);
    _tile_loadd(6, panel, 128);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, panel + 32, 128);
    _tile_dpbf16ps(1, 4, 7);
    if constexpr (kRows == 2) {
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
    for (int i = 0; i < fetch.lines; ++i) _mm_prefetch(fetch.at + i * 64, _MM_HINT_T1);
    fetch.at += fetch.step;
  }
  store_sums<kRows>(sums, columns);
}

// sums [rows][32] of one panel, for more than 16 rows: K in blocks whose part of the panel stays in L1
// while all rows pass over it. Sums wait in memory between blocks, which changes no bit of them. `next`:
// the next panel as it is stored, of next_bytes.
inline void multiply_blocked(const uint16_t* x, size_t stride, int rows, const uint16_t* panel, int depth,
                             float* sums, const void* next, size_t next_bytes) {
  constexpr int deepest = 640;  // x 32 columns x 2 bytes = 40 KiB, of 48
  const int blocks = (depth + deepest - 1) / deepest;
  const int block = ((depth + blocks - 1) / blocks + 31) / 32 * 32;
  const int tiles = (rows + 31) / 32;
  const size_t step = next_bytes / (depth / 32);
  const int lines = (int(step / 64) + tiles - 1) / tiles;
  for (int k = 0; k < depth; k += block) {
    const int span = std::min(block, depth - k);
    for (int first = 0; first < rows; first += 32) {
      const Fetch fetch{static_cast<const uint8_t*>(next) + k / 32 * step + first / 32 * lines * 64, lines,
                        step};
      const auto multiply = rows - first > 16 ? multiply_high<2> : multiply_high<1>;
      multiply(x + first * stride + k, stride, panel + k * 32, span, sums + first * 32, 32, k > 0, fetch);
    }
  }
}

// scores [16][64] of up to 16 queries [query][stride] and four groups of keys; head_dim a multiple of 32.
// With kFetch, brings the next four groups, keys and values, into L2 meanwhile.
template <bool kFetch>
void score_tiles(const uint16_t* queries, size_t stride, uint16_t* const* groups, uint16_t* const* next,
                 int head_dim, float* scores) {
  clear_sums();
  for (int dim = 0; dim < head_dim; dim += 32) {
    const int pairs = dim / 2 * 32;
    _tile_loadd(4, queries + dim, stride * 2);
    _tile_loadd(5, groups[0] + pairs, 64);
    _tile_dpbf16ps(0, 4, 5);
    _tile_loadd(6, groups[1] + pairs, 64);
    _tile_dpbf16ps(1, 4, 6);
    _tile_loadd(7, groups[2] + pairs, 64);
    _tile_dpbf16ps(2, 4, 7);
    _tile_loadd(5, groups[3] + pairs, 64);
    _tile_dpbf16ps(3, 4, 5);
    for (int line = 0; kFetch && line < 32; ++line) {
      for (int g = 0; g < 4; ++g) _mm_prefetch(next[g] + 2 * pairs + line * 32, _MM_HINT_T1);
    }
  }
  _tile_stored(0, scores, 256);
  _tile_stored(1, scores + 16, 256);
  _tile_stored(2, scores + 32, 256);
  _tile_stored(3, scores + 48, 256);
}

// fresh [16][head_dim] = weights [16][stride], 64 tokens, times values [32 pairs][head_dim][2].
inline void weigh_tiles(const uint16_t* weights, size_t stride, const uint16_t* values, int head_dim,
                        float* fresh) {
  const size_t row = size_t(head_dim) * 4;
  const uint16_t* high = values + size_t(16) * head_dim * 2;
  _tile_loadd(4, weights, stride * 2);
  _tile_loadd(5, weights + 32, stride * 2);
  for (int dim = 0; dim < head_dim; dim += 32) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_loadd(6, values + dim * 2, row);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, values + dim * 2 + 32, row);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(6, high + dim * 2, row);
    _tile_dpbf16ps(0, 5, 6);
    _tile_loadd(7, high + dim * 2 + 32, row);
    _tile_dpbf16ps(1, 5, 7);
    _tile_stored(0, fresh + dim, row);
    _tile_stored(1, fresh + dim + 16, row);
  }
}

#else
inline void open_tiles() {}
inline void close_tiles() {}
#endif

// Whether products of this type go through tiles here: for a whole process, yes or no.
template <class Type>
bool uses_tiles() {
#ifdef BATON_AMX
  return Type::pair == 2 && tiles_allowed();
#else
  return false;
#endif
}

}  // namespace baton
