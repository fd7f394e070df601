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

namespace baton {

constexpr int kTileTokens = 64;
constexpr int kTileGroups = kTileTokens / kGroup;
constexpr int kSegmentTokens = 512;
constexpr int kQueriesMax = 16;
constexpr float kNothing = -1e30f;  // below any score; finite, so that kNothing - kNothing is 0

// The running softmax of up to 16 queries: peak = max score (in bits: scores are scaled by log2 e),
// total = sum of 2^(score - peak), sums [query][head_dim] = the same sum weighted with values.
struct Softmax {
  float* peak;
  float* total;
  float* sums;
  static size_t floats(int head_dim) { return size_t(kQueriesMax) * (head_dim + 2); }
  static Softmax at(float* memory) { return {memory, memory + kQueriesMax, memory + 2 * kQueriesMax}; }
  void clear(int queries, int head_dim) const {
    std::fill(peak, peak + kQueriesMax, kNothing);
    std::fill(total, total + kQueriesMax, 0.0f);
    std::fill(sums, sums + size_t(queries) * head_dim, 0.0f);
  }
};

template <class Type>
struct Queries {
  alignas(kLine) typename Type::Element values[kQueriesMax * kHeadDimMax];  // [query][head_dim]
  int visible[kQueriesMax];  // keys that a query sees: its position + 1
  int count, visible_max;
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

constexpr int kFewRows = 5;  // up to here it takes fewer instructions to reduce them one by one

// Lane r = the largest of row r, for `count` rows; 0 past them.
inline __m512 largest_of(const __m512* rows, int count) {
  if (count > kFewRows) return reduce_rows(rows, [](__m512 a, __m512 b) { return _mm512_max_ps(a, b); });
  alignas(kLine) float row[kQueriesMax] = {};
  for (int r = 0; r < count; ++r) row[r] = _mm512_reduce_max_ps(rows[r]);
  return _mm512_load_ps(row);
}

// Lane r = the sum of row r, likewise.
inline __m512 sum_of(const __m512* rows, int count) {
  if (count > kFewRows) return reduce_rows(rows, [](__m512 a, __m512 b) { return _mm512_add_ps(a, b); });
  alignas(kLine) float row[kQueriesMax] = {};
  for (int r = 0; r < count; ++r) row[r] = _mm512_reduce_add_ps(rows[r]);
  return _mm512_load_ps(row);
}

// Turns the scores [query][64] of a tile that begins at token `base` into weights [query][64] of the
// model's type; factors [16] are what the queries' older sums are to be multiplied by. kAll: every query
// sees the whole tile.
template <class Type, bool kAll>
void reweigh(const Queries<Type>& queries, const float* scores, int base, const Softmax& state,
             typename Type::Element* weights, float* factors) {
  __m512 row[kQueriesMax] = {};
  const auto seen = [&](int r, int g) {
    return kAll ? __mmask16(0xFFFF) : mask_of(queries.visible[r] - base - g * kGroup);
  };
  for (int r = 0; r < queries.count; ++r, scores += kTileTokens) {
    __m512 top = _mm512_set1_ps(kNothing);
#pragma GCC unroll 4
    for (int g = 0; g < kTileGroups; ++g) {
      top = _mm512_mask_max_ps(top, seen(r, g), top, _mm512_load_ps(scores + g * kGroup));
    }
    row[r] = top;
  }
  const __m512 old_peak = _mm512_loadu_ps(state.peak);
  const __m512 scale = _mm512_set1_ps(queries.scale);
  const __m512 peak = _mm512_max_ps(_mm512_mul_ps(largest_of(row, queries.count), scale), old_peak);
  const __m512 factor = exp2(_mm512_sub_ps(old_peak, peak));
  _mm512_storeu_ps(state.peak, peak);
  _mm512_storeu_ps(factors, factor);
  scores -= queries.count * kTileTokens;
  for (int r = 0; r < queries.count; ++r, scores += kTileTokens, weights += kTileTokens) {
    const __m512 mine = _mm512_set1_ps(state.peak[r]);
    __m512 sum[kTileGroups];
#pragma GCC unroll 4
    for (int g = 0; g < kTileGroups; ++g) {
      const __m512 exponent = _mm512_fmsub_ps(_mm512_load_ps(scores + g * kGroup), scale, mine);
      sum[g] = _mm512_maskz_mov_ps(seen(r, g), exp2<Type::exp2_degree>(exponent));
    }
    Type::narrow_two(weights, sum[0], sum[1]);
    Type::narrow_two(weights + 2 * kGroup, sum[2], sum[3]);
    row[r] = _mm512_add_ps(_mm512_add_ps(sum[0], sum[1]), _mm512_add_ps(sum[2], sum[3]));
  }
  const __m512 total = _mm512_fmadd_ps(_mm512_loadu_ps(state.total), factor, sum_of(row, queries.count));
  _mm512_storeu_ps(state.total, total);
}

// sums = sums * factor + weights v, for C vectors of dimensions from `dim`. Values are read up to
// `tokens` only: what lies beyond in a page is never touched.
template <class Type, int R, int C>
void weigh(const typename Type::Element* weights, const float* factors, typename Type::Element* const* groups,
           int tokens, int head_dim, int dim, float* sums) {
  constexpr int pair = Type::pair;
  __m512 sum[R][C];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) {
      sum[r][c] =
          _mm512_mul_ps(_mm512_loadu_ps(sums + r * head_dim + dim + c * kLanes), _mm512_set1_ps(factors[r]));
    }
  }
  for (int token = 0; token < tokens; token += pair) {
    const typename Type::Element* value = groups[token / kGroup] + size_t(kGroup) * head_dim +
                                          (size_t(token % kGroup / pair) * head_dim + dim) * pair;
    const bool last_is_half = token + pair > tokens;
    typename Type::Wide wide[C];
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) {
      const typename Type::Element* at = value + c * kLanes * pair;
      wide[c] = last_is_half ? Type::load_first(at) : Type::load(at);
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const typename Type::Wide weight = Type::broadcast(weights + r * kTileTokens + token);
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) sum[r][c] = Type::multiply_add(sum[r][c], weight, wide[c]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) _mm512_storeu_ps(sums + r * head_dim + dim + c * kLanes, sum[r][c]);
  }
}

// The products of one tile on vectors, for R queries.
template <class Type, int R>
struct VectorProducts {
  using Element = typename Type::Element;
  static constexpr int wide = R <= 6 ? 4 : 2;

  static void score(const Queries<Type>& queries, Element* const* groups, Element* const* next, int head_dim,
                    float* scores) {
    baton::score<Type, R, wide>(queries, groups, next, head_dim, scores);
  }
  void fetch_values(Element* const*, int, int) {}
  void weigh(const Element* weights, const float* factors, Element* const* groups, int tokens, int head_dim,
             int, float* sums) {
    int dim = 0;
    for (; dim + wide * kLanes <= head_dim; dim += wide * kLanes) {
      baton::weigh<Type, R, wide>(weights, factors, groups, tokens, head_dim, dim, sums);
    }
    for (; dim < head_dim; dim += kLanes) {
      baton::weigh<Type, R, 1>(weights, factors, groups, tokens, head_dim, dim, sums);
    }
  }
};

// One segment of keys for the queries of a tile, by the products of Products.
template <class Type, class Products>
void attend_segment(const Queries<Type>& queries, const KvPool<Type>& pool, const int32_t* table, int layer,
                    int head, int segment, const Softmax& state) {
  using Element = typename Type::Element;
  alignas(kLine) float scores[kQueriesMax * kTileTokens];
  alignas(kLine) Element weights[kQueriesMax * kTileTokens];
  alignas(kLine) float factors[kQueriesMax];
  Products products;
  Element* groups[3][kTileGroups];  // of this tile and the two behind it
  const int stop = std::min(queries.visible_max, (segment + 1) * kSegmentTokens);
  // A tile's missing groups stand in for by its last one; their scores are masked.
  const auto find = [&](int base, Element** found) {
    for (int g = 0; g < kTileGroups; ++g) {
      found[g] = pool.group(table, std::min(base + g * kGroup, queries.visible_max - 1), layer, head);
    }
  };
  const auto score = [&](int base, Element* const* of, Element** behind) {
    find(base + kTileTokens, behind);
    Products::score(queries, of, queries.alone ? behind : of, pool.head_dim, scores);
  };
  find(segment * kSegmentTokens, groups[0]);
  score(segment * kSegmentTokens, groups[0], groups[1]);
  for (int base = segment * kSegmentTokens, turn = 0; base < stop; base += kTileTokens, ++turn) {
    const int tokens = std::min(kTileTokens, queries.visible_max - base);
    products.fetch_values(groups[turn % 3], tokens, pool.head_dim);
    const bool all = base + kTileTokens <= queries.visible[0];  // the first query sees least
    (all ? reweigh<Type, true> : reweigh<Type, false>)(queries, scores, base, state, weights, factors);
    // Here, the products of the next tile give the weights time to leave the store buffer, which is when
    // weigh() can load them as tiles. (Before reweigh(), into a second buffer, they took longer.)
    if (base + kTileTokens < stop) score(base + kTileTokens, groups[(turn + 1) % 3], groups[(turn + 2) % 3]);
    products.weigh(weights, factors, groups[turn % 3], tokens, pool.head_dim, queries.count, state.sums);
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
