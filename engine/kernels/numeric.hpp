// The two element types and the few vector operations that every kernel is written in.
//
// A kernel is a template over Float32 or BFloat16. Both multiply a vector of 16 "pairs": one float,
// or two adjacent bfloat16 (vdpbf16ps: acc + a0*b0 + a1*b1 in float32, rounded to nearest even).
#pragma once
#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace baton {

constexpr int kLanes = 16;

inline __mmask16 mask_of(int lanes) {
  return lanes >= kLanes ? __mmask16(0xFFFF) : __mmask16((1u << (lanes > 0 ? lanes : 0)) - 1);
}

// Numbers below 2^-126 become 0 while one lives, as vdpbf16ps has it always: softmax tails and SiLU make
// many, and the processor takes a hundred cycles over each. Restores the thread's mode.
class FlushDenormals {
 public:
  FlushDenormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | 0x8040); }
  ~FlushDenormals() { _mm_setcsr(before_); }

 private:
  unsigned before_;
};

struct Float32 {
  using Base = Float32;  // of activations and KV
  using Stored = float;  // of weights
  static constexpr bool grouped = false;
  static size_t panel_stored(int depth) { return size_t(depth) * 32; }
  using Element = float;
  using Wide = __m512;
  static constexpr int pair = 1;
  static Wide load(const float* from) { return _mm512_loadu_ps(from); }
  static Wide broadcast(const float* from) { return _mm512_set1_ps(*from); }
  static __m512 multiply_add(__m512 sum, Wide a, Wide b) { return _mm512_fmadd_ps(a, b, sum); }
  static __m512 widen(const float* from) { return _mm512_loadu_ps(from); }
  static float widen_one(float value) { return value; }
  static void narrow(float* to, __mmask16 lanes, __m512 value) { _mm512_mask_storeu_ps(to, lanes, value); }
  static void narrow_two(float* to, __m512 low, __m512 high) {
    _mm512_storeu_ps(to, low);
    _mm512_storeu_ps(to + kLanes, high);
  }
  // One of the `pair` interleaved streams of 16: read, and written from a plain one.
  static void take(const float* from, int, float* to) { _mm512_storeu_ps(to, _mm512_loadu_ps(from)); }
  static void place(float* to, int, const float* from) { _mm512_storeu_ps(to, _mm512_loadu_ps(from)); }
  // load() with zeros for what follows the first of each pair.
  static Wide load_first(const float* from) { return load(from); }
  static constexpr int exp2_degree = 7;
};

#ifdef BATON_BFLOAT16
struct BFloat16 {
  using Base = BFloat16;
  using Stored = uint16_t;
  static constexpr bool grouped = false;
  static size_t panel_stored(int depth) { return size_t(depth) * 32; }
  using Element = uint16_t;
  using Wide = __m512bh;
  static constexpr int pair = 2;
  static Wide load(const uint16_t* from) { return (__m512bh)_mm512_loadu_si512(from); }
  static Wide broadcast(const uint16_t* from) {
    int32_t bits;
    std::memcpy(&bits, from, sizeof bits);
    return (__m512bh)_mm512_set1_epi32(bits);
  }
  static __m512 multiply_add(__m512 sum, Wide a, Wide b) { return _mm512_dpbf16_ps(sum, a, b); }
  static __m512 widen(const uint16_t* from) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  }
  static float widen_one(uint16_t value) {
    const uint32_t bits = uint32_t(value) << 16;
    float result;
    std::memcpy(&result, &bits, sizeof result);
    return result;
  }
  static void narrow(uint16_t* to, __mmask16 lanes, __m512 value) {
    _mm256_mask_storeu_epi16(to, lanes, (__m256i)_mm512_cvtneps_pbh(value));
  }
  static void narrow_two(uint16_t* to, __m512 low, __m512 high) {
    _mm512_storeu_si512(to, (__m512i)_mm512_cvtne2ps_pbh(high, low));
  }
  static void take(const uint16_t* from, int lane, uint16_t* to) {
    const __m512i pairs = _mm512_srl_epi32(_mm512_loadu_si512(from), _mm_cvtsi32_si128(16 * lane));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi32_epi16(pairs));
  }
  static void place(uint16_t* to, int lane, const uint16_t* from) {
    const __m512i one = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
    _mm512_mask_storeu_epi16(to, __mmask32(0x55555555) << lane,
                             _mm512_sll_epi32(one, _mm_cvtsi32_si128(16 * lane)));
  }
  static Wide load_first(const uint16_t* from) {
    return (__m512bh)_mm512_maskz_loadu_epi16(0x55555555, from);
  }
  static constexpr int exp2_degree = 5;
};
#endif

// 2^x: 2^round(x) times the Taylor series of 2^f for |f| <= 1/2, to degree 7 (relative error < 1e-7) or
// to 5 (3e-6, for what is rounded to bfloat16 next: Type::exp2_degree). Exact at 0; 0 at and below -150; NaN
// stays NaN.
template <int degree = 7>
__m512 exp2(__m512 x) {
  x = _mm512_max_ps(_mm512_set1_ps(-150.0f), x);
  const __m512 whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 f = _mm512_sub_ps(x, whole);
  __m512 sum = _mm512_set1_ps(1.3333558e-3f);
  if constexpr (degree == 7) {
    sum = _mm512_fmadd_ps(_mm512_set1_ps(1.5252734e-5f), f, _mm512_set1_ps(1.5403530e-4f));
    sum = _mm512_fmadd_ps(sum, f, _mm512_set1_ps(1.3333558e-3f));
  }
  sum = _mm512_fmadd_ps(sum, f, _mm512_set1_ps(9.6181291e-3f));
  sum = _mm512_fmadd_ps(sum, f, _mm512_set1_ps(5.5504109e-2f));
  sum = _mm512_fmadd_ps(sum, f, _mm512_set1_ps(2.4022651e-1f));
  sum = _mm512_fmadd_ps(sum, f, _mm512_set1_ps(6.9314718e-1f));
  sum = _mm512_fmadd_ps(sum, f, _mm512_set1_ps(1.0f));
  return _mm512_scalef_ps(sum, whole);
}

inline float exp2_one(float x) { return _mm512_cvtss_f32(exp2(_mm512_set1_ps(x))); }

// Lane r = all lanes of rows[r] taken together, for 16 rows: what _mm512_reduce_*_ps gives for each, by the
// same tree and so to the bit, in a third of the instructions (the rows are transposed on the way).
template <class Operation>
__m512 reduce_rows(const __m512* rows, const Operation& both) {
  __m512 quarter[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    __m512 half[2];
#pragma GCC unroll 2
    for (int j = 0; j < 2; ++j) {
      const __m512 low = rows[8 * j + i], high = rows[8 * j + 4 + i];
      half[j] = both(_mm512_shuffle_f32x4(low, high, 0x44), _mm512_shuffle_f32x4(low, high, 0xEE));
    }
    quarter[i] =
        both(_mm512_shuffle_f32x4(half[0], half[1], 0x88), _mm512_shuffle_f32x4(half[0], half[1], 0xDD));
  }
  __m512 pair[2];
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    const __m512 low = quarter[2 * i], high = quarter[2 * i + 1];
    pair[i] = both(_mm512_shuffle_ps(low, high, 0x44), _mm512_shuffle_ps(low, high, 0xEE));
  }
  return both(_mm512_shuffle_ps(pair[0], pair[1], 0x88), _mm512_shuffle_ps(pair[0], pair[1], 0xDD));
}

// x * sigmoid(x) = x / (1 + 2^(-x log2 e)): SiLU, Elfwing et al. 2017. The reciprocal is the processor's
// estimate to 14 bits and one step of Newton's method (relative error < 2^-26).
template <int degree = 7>
__m512 silu(__m512 x) {
  const __m512 exponent =
      _mm512_min_ps(_mm512_mul_ps(x, _mm512_set1_ps(-1.44269504f)), _mm512_set1_ps(100.0f));
  const __m512 below = _mm512_add_ps(_mm512_set1_ps(1.0f), exp2<degree>(exponent));
  const __m512 estimate = _mm512_rcp14_ps(below);
  const __m512 error = _mm512_fnmadd_ps(below, estimate, _mm512_set1_ps(1.0f));
  return _mm512_mul_ps(x, _mm512_fmadd_ps(estimate, error, estimate));
}

}  // namespace baton
