// int8 weights that stand for bfloat16 ones: groups of 32 along K with a scale each.
//
// Packed layout: [panel][K / 32][1088 bytes], a group being its 32 columns' scales in bfloat16 (64 bytes),
// then 16 pairs of K as in linear.hpp, [16][32 columns][2] in int8 (1,024 bytes). Every piece starts on a
// 64-byte line. A weight is bfloat16(scale * int8), scale = the group's largest magnitude / 127 rounded
// to bfloat16; activations, KV and sums are those of BFloat16. Symmetric group-wise rounding to nearest
// as in ZeroQuant (Yao et al. 2022); per-channel scales agree with float32 at too few positions.
#pragma once
#include <cmath>

#include "packed.hpp"

namespace baton {

#ifdef BATON_BFLOAT16

constexpr int kGroupDepth = 32;
constexpr size_t kGroupHeader = kPanel * 2;
constexpr size_t kGroupBytes = kGroupHeader + size_t(kPanel) * kGroupDepth;

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
    const int8_t rounded = int8_t(std::lrint(std::clamp(value, -127.0f, 127.0f)));
    std::memcpy(group + kGroupHeader + k / 2 * size_t(kPanel) * 2 + column * 2 + k % 2, &rounded, 1);
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
    int8_t value;
    std::memcpy(&value, group + kGroupHeader + k % kGroupDepth / 2 * kPanel * 2 + column * 2 + k % 2, 1);
    to[k] = BFloat16::widen_one(nearest_bfloat16(float(value) * BFloat16::widen_one(scale)));
  }
}

// The scales of a group, each twice (for either of a pair), in the order of the columns.
struct GroupScales {
  __m512 of[4];
  explicit GroupScales(const uint8_t* group) {
    const __m512i low = _mm512_set_epi32(7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    for (int half = 0; half < 2; ++half) {
      const __m512 scales = BFloat16::widen(reinterpret_cast<const uint16_t*>(group) + half * kLanes);
      of[2 * half] = _mm512_permutexvar_ps(low, scales);
      of[2 * half + 1] = _mm512_permutexvar_ps(high, scales);
    }
  }

  // Sixteen columns (0: the first, 1: the last) of one pair of K as an operand of multiply_add.
  __m512bh expand(const uint8_t* line, int half) const {
    __m512 value[2];
    for (int i = 0; i < 2; ++i) {
      const __m128i bytes = _mm_load_si128(reinterpret_cast<const __m128i*>(line + half * 32 + i * 16));
      value[i] = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes)), of[2 * half + i]);
    }
    return _mm512_cvtne2ps_pbh(value[1], value[0]);
  }
};

// One group as 16 pairs of bfloat16, [16][32 columns][2]; fetches what lies 4 KiB on.
inline void expand_group(const uint8_t* group, uint16_t* to) {
  const GroupScales scales(group);
  _mm_prefetch(group + 4096, _MM_HINT_T0);
  for (int pair = 0; pair < kGroupDepth / 2; ++pair, to += 2 * kPanel) {
    const uint8_t* line = group + kGroupHeader + pair * size_t(kPanel) * 2;
    _mm_prefetch(line + 4096, _MM_HINT_T0);
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
      const uint8_t* line = panel + kGroupHeader + pair * size_t(kPanel) * 2;
      _mm_prefetch(line + 4096, _MM_HINT_T0);
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
