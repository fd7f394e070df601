// int8 weights that stand for bfloat16 ones: groups of 32 along K with a scale each.
//
// Packed layout: [panel][K / 32][1088 bytes], a group being its 32 columns' scales in bfloat16 (64 bytes),
// then 16 pairs of K, a line of 32 columns x 2 each (1,024 bytes), every weight plus 128 in a byte. Of the 64
// of a line, numbered [column][2], byte 16 q + d stands at 4 d + q: sixteen lanes hold those of q = 0 to 3 in
// their four bytes. Every piece starts on a 64-byte line. A weight is bfloat16(scale * int8), scale = the
// group's largest magnitude / 127 rounded to bfloat16; activations, KV and sums are those of BFloat16.
// Symmetric group-wise rounding to nearest as in ZeroQuant (Yao et al. 2022); per-channel scales agree with
// float32 at too few positions.
#pragma once
#include <cmath>

#include "packed.hpp"

namespace baton {

#ifdef BATON_BFLOAT16

constexpr int kGroupDepth = 32;
constexpr size_t kGroupHeader = kPanel * 2;
constexpr size_t kGroupBytes = kGroupHeader + size_t(kPanel) * kGroupDepth;
constexpr int kByteBias = 128;

// Where in a group the byte of row k and a column is.
inline size_t place_in_group(int k, int column) {
  const int number = column * 2 + k % 2;
  return kGroupHeader + k / 2 * kLine + number % 16 * 4 + number / 16;
}

struct GroupedInt8 : BFloat16 {
  using Stored = uint8_t;
  static constexpr bool grouped = true;
  static size_t panel_stored(int depth) { return size_t(depth) / kGroupDepth * kGroupBytes; }
};

inline uint16_t nearest_bfloat16(float value) {
  uint16_t lanes[kLanes];
  BFloat16::narrow(lanes, 1, _mm512_set1_ps(value));
  return lanes[0];
}

// One column of one group: from [32] bfloat16, of which `real` count, the rest being zeros.
inline void pack_group(const uint16_t* from, int real, int column, uint8_t* group) {
  float largest = 0.0f;
  for (int k = 0; k < real; ++k) largest = std::max(largest, std::fabs(BFloat16::widen_one(from[k])));
  const uint16_t bits = nearest_bfloat16(largest / 127.0f);
  const float scale = BFloat16::widen_one(bits);
  std::memcpy(group + column * 2, &bits, sizeof bits);
  for (int k = 0; k < kGroupDepth; ++k) {
    const float value = k < real && scale > 0.0f ? BFloat16::widen_one(from[k]) / scale : 0.0f;
    group[place_in_group(k, column)] = uint8_t(std::lrint(std::clamp(value, -127.0f, 127.0f)) + kByteBias);
  }
}

// As pack() of packed.hpp; a column past N gets zeros.
template <>
inline void pack<GroupedInt8>(const Packed<GroupedInt8>& to, const uint16_t* from, bool halves,
                              Range panels) {
  for (int panel = panels.first; panel < panels.last; ++panel) {
    for (int column = 0; column < kPanel; ++column) {
      const int row = row_of_column(to.rows, halves, panel, column);
      for (int k = 0; k < to.depth(); k += kGroupDepth) {
        const int real = row < 0 ? 0 : std::clamp(to.columns - k, 0, kGroupDepth);
        const uint16_t* at = real == 0 ? from : from + size_t(row) * to.columns + k;
        pack_group(at, real, column, to.panel(panel) + k / kGroupDepth * kGroupBytes);
      }
    }
  }
}

template <>
inline void unpack_row<GroupedInt8>(const Packed<GroupedInt8>& from, int row, float* to) {
  for (int k = 0; k < from.columns; ++k) {
    const uint8_t* group = from.panel(row / kPanel) + k / kGroupDepth * kGroupBytes;
    const int column = row % kPanel;
    uint16_t scale;
    std::memcpy(&scale, group + column * 2, sizeof scale);
    const int value = group[place_in_group(k % kGroupDepth, column)] - kByteBias;
    to[k] = BFloat16::widen_one(nearest_bfloat16(float(value) * BFloat16::widen_one(scale)));
  }
}

// The scales of a group, each twice (for either of a pair), in the order of the columns, and how they make
// weights of bytes. A byte in the lowest bits of the float 2^23, or 8 bits higher in 2^15, adds itself to it;
// scale * (2^n + byte) - scale * (2^n + 128), exact in either product and in the difference, is the scale
// times the weight (below 2^105, where the products would overflow; a model has no weights near it). No
// instruction converts an integer: those wait for the same units as the rounding to bfloat16.
struct GroupScales {
  __m512 of[4], minus_bias[4];
  explicit GroupScales(const uint8_t* group) {
    const __m512i low = _mm512_set_epi32(7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    for (int half = 0; half < 2; ++half) {
      const __m512 scales = BFloat16::widen(reinterpret_cast<const uint16_t*>(group) + half * kLanes);
      of[2 * half] = _mm512_permutexvar_ps(low, scales);
      of[2 * half + 1] = _mm512_permutexvar_ps(high, scales);
      minus_bias[2 * half] = _mm512_mul_ps(of[2 * half], _mm512_set1_ps(-0x1p23f - kByteBias));
      minus_bias[2 * half + 1] = _mm512_mul_ps(of[2 * half + 1], _mm512_set1_ps(-0x1p15f - kByteBias));
    }
  }

  // Sixteen columns (half 0: the first, 1: the last) of one pair of K as an operand of multiply_add.
  __m512bh expand(__m512i line, int half) const {
    const __m512i bytes = half == 0 ? line : _mm512_srli_epi32(line, 16);
    const __m512i even = _mm512_mask_blend_epi8(0x1111111111111111, _mm512_set1_epi32(0x4B000000), bytes);
    const __m512i odd = _mm512_mask_blend_epi8(0x2222222222222222, _mm512_set1_epi32(0x47000000), bytes);
    return _mm512_cvtne2ps_pbh(
        _mm512_fmadd_ps(_mm512_castsi512_ps(odd), of[2 * half + 1], minus_bias[2 * half + 1]),
        _mm512_fmadd_ps(_mm512_castsi512_ps(even), of[2 * half], minus_bias[2 * half]));
  }
};

// One group as 16 pairs of bfloat16, [16][32 columns][2]; fetches what lies 4 KiB on.
inline void expand_group(const uint8_t* group, uint16_t* to) {
  const GroupScales scales(group);
  _mm_prefetch(group + 4096, _MM_HINT_T0);
  for (int pair = 0; pair < kGroupDepth / 2; ++pair, to += 2 * kPanel) {
    const uint8_t* at = group + kGroupHeader + pair * kLine;
    const __m512i line = _mm512_load_si512(at);
    _mm_prefetch(at + 4096, _MM_HINT_T0);
    _mm512_store_si512(to, (__m512i)scales.expand(line, 0));
    _mm512_store_si512(to + kPanel, (__m512i)scales.expand(line, 1));
  }
}

inline void expand_panel(const uint8_t* panel, int depth, uint16_t* to) {
  for (int k = 0; k < depth; k += kGroupDepth, panel += kGroupBytes, to += kGroupDepth * kPanel) {
    expand_group(panel, to);
  }
}

// multiply_tile of linear.hpp on one panel as it is stored: for few rows, whose products take no longer
// than bringing the weights from memory.
template <int R>
void multiply_grouped(const uint16_t* x, size_t stride, const uint8_t* panel, int depth, float* sums,
                      size_t columns) {
  __m512 sum[R][2];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) sum[r][0] = sum[r][1] = _mm512_setzero_ps();
  for (int k = 0; k < depth; k += kGroupDepth, panel += kGroupBytes) {
    const GroupScales scales(panel);
    _mm_prefetch(panel + 4096, _MM_HINT_T0);
    for (int pair = 0; pair < kGroupDepth / 2; ++pair) {
      const uint8_t* at = panel + kGroupHeader + pair * kLine;
      const __m512i line = _mm512_load_si512(at);
      _mm_prefetch(at + 4096, _MM_HINT_T0);
      const __m512bh low = scales.expand(line, 0);
      const __m512bh high = scales.expand(line, 1);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const __m512bh value = BFloat16::broadcast(x + r * stride + k + 2 * pair);
        sum[r][0] = BFloat16::multiply_add(sum[r][0], low, value);
        sum[r][1] = BFloat16::multiply_add(sum[r][1], high, value);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    _mm512_store_ps(sums + r * columns, sum[r][0]);
    _mm512_store_ps(sums + r * columns + kLanes, sum[r][1]);
  }
}

constexpr int kGroupedRows = 8;

using GroupedFunction = void (*)(const uint16_t*, size_t, const uint8_t*, int, float*, size_t);
inline GroupedFunction grouped_function(int rows) {
  constexpr GroupedFunction functions[kGroupedRows] = {
      multiply_grouped<1>, multiply_grouped<2>, multiply_grouped<3>, multiply_grouped<4>,
      multiply_grouped<5>, multiply_grouped<6>, multiply_grouped<7>, multiply_grouped<8>};
  return functions[rows - 1];
}

#ifdef BATON_AMX
// The same for up to 16 rows on AMX: a group is expanded while the tiles of the one before are multiplied.
inline void multiply_low_grouped(const uint16_t* x, size_t stride, const uint8_t* panel, int depth,
                                 float* sums, size_t columns) {
  alignas(kLine) uint16_t expanded[2][kGroupDepth * kPanel];
  clear_sums();
  expand_group(panel, expanded[0]);
  for (int k = 0; k < depth; k += kGroupDepth) {
    const uint16_t* now = expanded[k / kGroupDepth % 2];
    panel += kGroupBytes;
    if (k + kGroupDepth < depth) expand_group(panel, expanded[(k / kGroupDepth + 1) % 2]);
    _tile_loadd(4, x + k, stride * 2);
    _tile_loadd(6, now, 128);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, now + 32, 128);
    _tile_dpbf16ps(1, 4, 7);
  }
  _tile_stored(0, sums, columns * 4);
  _tile_stored(1, sums + 16, columns * 4);
}
#endif

#endif

}  // namespace baton
