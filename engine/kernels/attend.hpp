// Attention of a few queries of one KV head over one segment of its keys: the arithmetic.
//
// Keys come in fixed tiles of 64 tokens with an online softmax in float32 (Milakov & Gimelshein 2018,
// tiled as in FlashAttention, Dao et al. 2022), tiles in fixed segments of 512 tokens whose results are
// merged in order (FlashDecoding's rescaling). Tiles and segments start at multiples of their length,
// counted from token 0, so a query's bits depend on its own position and keys only: decode equals
// prefill, however the prompt was cut, paged, batched or spread over threads.
#pragma once
#include <algorithm>

#include "kv_pool.hpp"
#include "tiles.hpp"

namespace baton {

constexpr int kTileTokens = 64;
constexpr int kTileGroups = kTileTokens / kGroup;
constexpr int kSegmentTokens = 512;
constexpr int kQueries = 8;
constexpr int kScoreRows = 16;      // an AMX tile's; those past the last query are never read
constexpr float kNothing = -1e30f;  // below any score; finite, so that kNothing - kNothing is 0

// The running softmax of up to 8 queries: peak = max score (in bits: scores are scaled by log2 e),
// total = sum of 2^(score - peak), sums [query][head_dim] = the same sum weighted with values.
struct Softmax {
  float* peak;
  float* total;
  float* sums;
  static size_t floats(int head_dim) { return size_t(kQueries) * (head_dim + 2); }
  static Softmax at(float* memory) { return {memory, memory + kQueries, memory + 2 * kQueries}; }
  void clear(int queries, int head_dim) const {
    std::fill(peak, peak + queries, kNothing);
    std::fill(total, total + queries, 0.0f);
    std::fill(sums, sums + size_t(queries) * head_dim, 0.0f);
  }
};

template <class Type>
struct Queries {
  alignas(kLine) typename Type::Element values[kScoreRows * kHeadDimMax];  // [query][head_dim]
  int visible[kQueries];  // keys that a query sees: its position + 1
  int visible_max;
  bool alone;   // the only tile of its row: nobody else brings these keys into the cache
  float scale;  // log2(e) / sqrt(head_dim)
};

// scores [R][64] += q k over head_dim, 16 W tokens at a time; fetches the next tile meanwhile.
template <class Type, int R, int W>
void score(const Queries<Type>& queries, typename Type::Element* const* groups,
           typename Type::Element* const* next, int head_dim, float* scores) {
  constexpr int line = kLine / sizeof(typename Type::Element);
  for (int first = 0; first < kTileGroups; first += W) {
    __m512 sum[R][W];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int w = 0; w < W; ++w) sum[r][w] = _mm512_setzero_ps();
    }
    for (int step = 0; step < head_dim / Type::pair; ++step) {
      typename Type::Wide key[W];
#pragma GCC unroll 4
      for (int w = 0; w < W; ++w) {
        key[w] = Type::load(groups[first + w] + size_t(step) * line);
        _mm_prefetch(next[first + w] + size_t(step) * 2 * line, _MM_HINT_T1);
        _mm_prefetch(next[first + w] + size_t(step) * 2 * line + line, _MM_HINT_T1);
      }
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const typename Type::Wide query =
            Type::broadcast(queries.values + r * kHeadDimMax + step * Type::pair);
#pragma GCC unroll 4
        for (int w = 0; w < W; ++w) sum[r][w] = Type::multiply_add(sum[r][w], key[w], query);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int w = 0; w < W; ++w) _mm512_store_ps(scores + r * kTileTokens + (first + w) * kGroup, sum[r][w]);
    }
  }
}

// Turns one query's scores of a tile into weights; returns the factor for its older sums.
inline float reweigh(float* scores, int visible, float scale, float& peak, float& total) {
  __m512 value[kTileGroups];
  __m512 top = _mm512_set1_ps(kNothing);
  for (int g = 0; g < kTileGroups; ++g) {
    const __m512 scaled = _mm512_mul_ps(_mm512_load_ps(scores + g * kGroup), _mm512_set1_ps(scale));
    value[g] = _mm512_mask_mov_ps(_mm512_set1_ps(kNothing), mask_of(visible - g * kGroup), scaled);
    top = _mm512_max_ps(top, value[g]);
  }
  const float new_peak = std::max(peak, _mm512_reduce_max_ps(top));
  const float factor = exp2_one(peak - new_peak);
  __m512 sum[kTileGroups];
  for (int g = 0; g < kTileGroups; ++g) {
    const __m512 power = exp2(_mm512_sub_ps(value[g], _mm512_set1_ps(new_peak)));
    sum[g] = _mm512_maskz_mov_ps(mask_of(visible - g * kGroup), power);
    _mm512_store_ps(scores + g * kGroup, sum[g]);
  }
  const __m512 all = _mm512_add_ps(_mm512_add_ps(sum[0], sum[1]), _mm512_add_ps(sum[2], sum[3]));
  total = total * factor + _mm512_reduce_add_ps(all);
  peak = new_peak;
  return factor;
}

// sums = sums * factor + weights v, for C vectors of dimensions from `dim`. Values are read up to
// `tokens` only: what lies beyond in a page is never touched.
template <class Type, int R, int C>
void weigh(const float* weights, const float* factors, typename Type::Element* const* groups, int tokens,
           int head_dim, int dim, float* sums) {
  __m512 sum[R][C];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) {
      sum[r][c] =
          _mm512_mul_ps(_mm512_loadu_ps(sums + r * head_dim + dim + c * kLanes), _mm512_set1_ps(factors[r]));
    }
  }
  for (int first = 0; first < tokens; first += kGroup) {
    const typename Type::Element* value = groups[first / kGroup] + size_t(kGroup) * head_dim + dim;
    const int count = std::min(kGroup, tokens - first);
    for (int token = 0; token < count; ++token, value += head_dim) {
      __m512 wide[C];
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) wide[c] = Type::widen(value + c * kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const __m512 weight = _mm512_set1_ps(weights[r * kTileTokens + first + token]);
#pragma GCC unroll 4
        for (int c = 0; c < C; ++c) sum[r][c] = _mm512_fmadd_ps(weight, wide[c], sum[r][c]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) _mm512_storeu_ps(sums + r * head_dim + dim + c * kLanes, sum[r][c]);
  }
}

template <class Type, int R>
void score_tile(const Queries<Type>& queries, typename Type::Element* const* groups,
                typename Type::Element* const* next, int head_dim, float* scores) {
#ifdef BATON_AMX
  if constexpr (Type::pair == 2) {
    if (head_dim % 32 == 0 && tiles_allowed()) {
      return score_tiles(queries.values, kHeadDimMax, groups, next, head_dim, scores);
    }
  }
#endif
  score<Type, R, R <= 6 ? 4 : 2>(queries, groups, next, head_dim, scores);
}

template <class Type, int R>
void attend_segment(const Queries<Type>& queries, const KvPool<Type>& pool, const int32_t* table, int layer,
                    int head, int segment, const Softmax& state) {
  constexpr int wide = R <= 6 ? 4 : 2;
  using Element = typename Type::Element;
  alignas(kLine) float scores[kScoreRows * kTileTokens];
  float factors[R];
  Element* groups[kTileGroups];
  Element* next[kTileGroups];
  const int stop = std::min(queries.visible_max, (segment + 1) * kSegmentTokens);
  // A tile's missing groups stand in for by its last one; their scores are masked.
  const auto find = [&](int base, Element** found) {
    for (int g = 0; g < kTileGroups; ++g) {
      found[g] = pool.group(table, std::min(base + g * kGroup, queries.visible_max - 1), layer, head);
    }
  };
  find(segment * kSegmentTokens, groups);
  for (int base = segment * kSegmentTokens; base < stop; base += kTileTokens) {
    find(base + kTileTokens, next);
    score_tile<Type, R>(queries, groups, queries.alone ? next : groups, pool.head_dim, scores);
    for (int r = 0; r < R; ++r) {
      factors[r] = reweigh(scores + r * kTileTokens, queries.visible[r] - base, queries.scale, state.peak[r],
                           state.total[r]);
    }
    const int tokens = std::min(kTileTokens, queries.visible_max - base);
    int dim = 0;
    for (; dim + wide * kLanes <= pool.head_dim; dim += wide * kLanes) {
      weigh<Type, R, wide>(scores, factors, groups, tokens, pool.head_dim, dim, state.sums);
    }
    for (; dim < pool.head_dim; dim += kLanes) {
      weigh<Type, R, 1>(scores, factors, groups, tokens, pool.head_dim, dim, state.sums);
    }
    std::copy(next, next + kTileGroups, groups);
  }
}

// Adds a later segment's softmax to the one of all segments before it.
inline void merge(const Softmax& into, const Softmax& part, int queries, int head_dim) {
  for (int r = 0; r < queries; ++r) {
    const float peak = std::max(into.peak[r], part.peak[r]);
    const __m512 old_factor = _mm512_set1_ps(exp2_one(into.peak[r] - peak));
    const __m512 new_factor = _mm512_set1_ps(exp2_one(part.peak[r] - peak));
    into.peak[r] = peak;
    into.total[r] =
        into.total[r] * _mm512_cvtss_f32(old_factor) + part.total[r] * _mm512_cvtss_f32(new_factor);
    for (int dim = 0; dim < head_dim; dim += kLanes) {
      float* sums = into.sums + r * head_dim + dim;
      const __m512 scaled = _mm512_mul_ps(_mm512_loadu_ps(sums), old_factor);
      _mm512_storeu_ps(sums,
                       _mm512_fmadd_ps(_mm512_loadu_ps(part.sums + r * head_dim + dim), new_factor, scaled));
    }
  }
}

}  // namespace baton
