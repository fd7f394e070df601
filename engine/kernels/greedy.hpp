// Which token has the largest logit, found while logits are computed: of equals, the lowest id.
//
// The head's panels are shared out among threads, in any way. Each thread keeps, per sample and vector
// lane, the best it has seen, and reduce() looks at all of them, so the answer depends on no sharing.
#pragma once
#include <algorithm>
#include <limits>

#include "memory.hpp"
#include "numeric.hpp"

namespace baton {

struct Greedy {
  int samples_max = 0;
  float* value = nullptr;    // [threads][samples][kLanes]
  int32_t* token = nullptr;  // the same

  void carve(Arena& arena, int samples, int threads) {
    samples_max = samples;
    value = arena.carve<float>(size_t(threads) * samples * kLanes);
    token = arena.carve<int32_t>(size_t(threads) * samples * kLanes);
  }

  void reset(int threads) {
    const size_t lanes = size_t(threads) * samples_max * kLanes;
    std::fill_n(value, lanes, -std::numeric_limits<float>::infinity());
    std::fill_n(token, lanes, 0);
  }

  // The logits of tokens first .. first + kLanes, those of `real` lanes, in whatever order a thread meets
  // them. Of equals the lowest id stays.
  void see(int thread, int sample, int first, __mmask16 real, __m512 logits) {
    const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const size_t at = (size_t(thread) * samples_max + sample) * kLanes;
    const __m512i ids = _mm512_add_epi32(lane, _mm512_set1_epi32(first));
    const __m512 best = _mm512_loadu_ps(value + at);
    const __mmask16 greater = _mm512_mask_cmp_ps_mask(real, logits, best, _CMP_GT_OQ);
    const __mmask16 equal = _mm512_mask_cmp_ps_mask(real, logits, best, _CMP_EQ_OQ);
    const __m512i kept = _mm512_loadu_si512(token + at);
    const __mmask16 better = greater | _mm512_mask_cmplt_epi32_mask(equal, ids, kept);
    _mm512_mask_storeu_ps(value + at, better, logits);
    _mm512_mask_storeu_epi32(token + at, better, ids);
  }

  int32_t reduce(int sample, int threads) const {
    float best = -std::numeric_limits<float>::infinity();
    int32_t found = 0;
    for (int thread = 0; thread < threads; ++thread) {
      const size_t at = (size_t(thread) * samples_max + sample) * kLanes;
      for (int i = 0; i < kLanes; ++i) {
        const bool better = value[at + i] > best || (value[at + i] == best && token[at + i] < found);
        if (better) best = value[at + i], found = token[at + i];
      }
    }
    return found;
  }
};

}  // namespace baton
