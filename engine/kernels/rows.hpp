// What is done to one token's row at a time: RMSNorm and the rotary embedding.
#pragma once
#include <cmath>

#include "numeric.hpp"

namespace baton {

// 1 / sqrt(mean(x^2) + epsilon), x float32 [count], count a multiple of 16 (Zhang & Sennrich 2019).
inline float inverse_rms(const float* x, int count, float epsilon) {
  __m512 sum[4] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps()};
  for (int i = 0; i < count; i += kLanes) {
    const __m512 value = _mm512_loadu_ps(x + i);
    sum[i / kLanes % 4] = _mm512_fmadd_ps(value, value, sum[i / kLanes % 4]);
  }
  const __m512 all = _mm512_add_ps(_mm512_add_ps(sum[0], sum[1]), _mm512_add_ps(sum[2], sum[3]));
  return 1.0f / std::sqrt(_mm512_reduce_add_ps(all) / float(count) + epsilon);
}

template <class Type>
void rms_norm(const float* x, const float* weight, int count, float epsilon, typename Type::Element* out) {
  const __m512 inverse = _mm512_set1_ps(inverse_rms(x, count, epsilon));
  for (int i = 0; i < count; i += kLanes) {
    const __m512 scaled = _mm512_mul_ps(_mm512_loadu_ps(x + i), inverse);
    Type::narrow(out + i, 0xFFFF, _mm512_mul_ps(scaled, _mm512_loadu_ps(weight + i)));
  }
}

// In place on one head, float32 [head_dim] (Qwen3 normalises each head of q and k).
inline void rms_norm_head(float* x, const float* weight, int head_dim, float epsilon) {
  rms_norm<Float32>(x, weight, head_dim, epsilon, x);
}

// cos and sin of position * inverse_frequency, [head_dim / 2] each; the product is rounded to float32
// first, as the models were trained.
inline void rotary_angles(int position, const float* inverse_frequency, int half, float* cosines,
                          float* sines) {
  for (int i = 0; i < half; ++i) {
    const double angle = double(float(position) * inverse_frequency[i]);
    cosines[i] = float(std::cos(angle));
    sines[i] = float(std::sin(angle));
  }
}

// Rotates dimensions (i, i + head_dim / 2) of one head in place (RoPE, Su et al. 2021, half-split form).
inline void rotate(float* head, const float* cosines, const float* sines, int half) {
  for (int i = 0; i < half; i += kLanes) {
    const __mmask16 lanes = mask_of(half - i);
    const __m512 low = _mm512_maskz_loadu_ps(lanes, head + i);
    const __m512 high = _mm512_maskz_loadu_ps(lanes, head + half + i);
    const __m512 cosine = _mm512_maskz_loadu_ps(lanes, cosines + i);
    const __m512 sine = _mm512_maskz_loadu_ps(lanes, sines + i);
    const __m512 new_low = _mm512_sub_ps(_mm512_mul_ps(low, cosine), _mm512_mul_ps(high, sine));
    const __m512 new_high = _mm512_add_ps(_mm512_mul_ps(high, cosine), _mm512_mul_ps(low, sine));
    _mm512_mask_storeu_ps(head + i, lanes, new_low);
    _mm512_mask_storeu_ps(head + half + i, lanes, new_high);
  }
}

}  // namespace baton
