// The products of attention on AMX: up to 16 queries of one KV head against a tile of 64 tokens.
//
// Keys are operands as they lie. Values are first put side by side, 32 pairs of tokens by head_dim, with
// zeros for tokens that nobody sees: a tile product takes 16 pairs, and one group has 8.
#pragma once
#include "attend.hpp"
#include "tiles.hpp"

namespace baton {

#ifdef BATON_AMX

// head_dim must be a multiple of 32.
struct TileProducts {
  static constexpr int pairs = kTileTokens / 2;

  static void score(const Queries<BFloat16>& queries, uint16_t* const* groups, uint16_t* const* next,
                    int head_dim, float* scores) {
    const auto tiles = queries.alone ? score_tiles<true> : score_tiles<false>;
    tiles(queries.values, kHeadDimMax, groups, next, head_dim, scores);
  }

  // Well before weigh(): a tile load waits until what it reads has left the store buffer.
  void fetch_values(uint16_t* const* groups, int tokens, int head_dim) {
    gather(groups, tokens, head_dim, values_);
  }

  void weigh(const uint16_t* weights, const float* factors, uint16_t* const*, int, int head_dim, int queries,
             float* sums) {
    weigh_tiles(weights, kTileTokens, values_, head_dim, fresh_);
    for (int query = 0; query < queries; ++query) {
      const __m512 factor = _mm512_set1_ps(factors[query]);
      float* to = sums + query * head_dim;
      const float* from = fresh_ + query * head_dim;
      for (int dim = 0; dim < head_dim; dim += kLanes) {
        _mm512_storeu_ps(to + dim,
                         _mm512_fmadd_ps(_mm512_loadu_ps(to + dim), factor, _mm512_load_ps(from + dim)));
      }
    }
  }

 private:
  // values [32 pairs][head_dim][2]
  static void gather_all(uint16_t* const* groups, int head_dim, uint16_t* values) {
    const int width = kGroup * head_dim;
    for (int g = 0; g < kTileGroups; ++g, values += width) {
      for (int i = 0; i < width; i += 64) {
        _mm512_store_si512(values + i, _mm512_loadu_si512(groups[g] + width + i));
        _mm512_store_si512(values + i + 32, _mm512_loadu_si512(groups[g] + width + i + 32));
      }
    }
  }

  static void gather(uint16_t* const* groups, int tokens, int head_dim, uint16_t* values) {
    if (tokens == kTileTokens) return gather_all(groups, head_dim, values);
    const int width = head_dim * 2;
    for (int pair = 0; pair < pairs; ++pair, values += width) {
      const int token = pair * 2;
      const uint16_t* from = groups[token / kGroup] + kGroup * head_dim + token % kGroup / 2 * width;
      const __mmask32 seen = token + 1 < tokens ? 0xFFFFFFFF : token < tokens ? 0x55555555 : 0;
      for (int i = 0; i < width; i += 32)
        _mm512_store_si512(values + i, _mm512_maskz_loadu_epi16(seen, from + i));
    }
  }

  alignas(kLine) uint16_t values_[pairs * kHeadDimMax * 2];
  alignas(kLine) float fresh_[kQueriesMax * kHeadDimMax];
};

#endif

}  // namespace baton
