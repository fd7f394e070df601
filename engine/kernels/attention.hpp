// Which thread attends to what: decode rows and prefill chunks of a step as one list of units.
//
// A tile is up to 8 queries (16 on AMX; a query is a token and a head of the KV head's group) of one row:
// all heads that share a KV head read its pages once. A unit is a tile, or where tiles are too few for
// the threads one 512-token segment of a tile; either way each segment is computed alone and merged in
// order, so the choice does not show in the result.
#pragma once
#include <cmath>
#include <utility>
#include <vector>

#include "attend_tiles.hpp"
#include "threads.hpp"

namespace baton {

// Some tokens of a row of the step: `tokens` consecutive positions from `start`, whose queries are at
// `first_token` of the step and whose results go to `first_output` and on.
struct RowView {
  int first_token, tokens, start, first_output;
  const int32_t* table;
};

constexpr int kVectorQueries = 8;
constexpr int kPartialMax = 1024;

template <class Type>
class Attention {
 public:
  using Element = typename Type::Element;

  Attention(int heads, int kv_heads, int head_dim, int tokens_max)
      : heads_(heads), kv_heads_(kv_heads), head_dim_(head_dim) {
    const int tiles_max = tokens_max * (heads / kv_heads);
    tiles_.reserve(tiles_max);
    units_.reserve(std::max(tiles_max, kPartialMax));
  }

  static size_t partial_floats(int head_dim) { return kPartialMax * Softmax::floats(head_dim); }

  // Called once per step, by one thread; `rows` and `partials` (partial_floats()) must outlast the step.
  void plan(const std::vector<RowView>& rows, int threads, float* partials) {
    partials_ = partials;
    const int most = on_tiles() ? kQueriesMax : kVectorQueries;
    const int group = heads_ / kv_heads_;
    tiles_.clear();
    units_.clear();
    int segments = 0;
    for (const RowView& row : rows) {
      const int queries = row.tokens * group;
      const int tiles = (queries + most - 1) / most;
      for (int tile = tiles - 1; tile >= 0; --tile) {
        const Range part = share_of(queries, tile, tiles);
        const int visible = row.start + (part.last - 1) / group + 1;
        const int needed = (visible + kSegmentTokens - 1) / kSegmentTokens;
        tiles_.push_back({&row, part.first, part.last - part.first, segments, needed});
        segments += needed;
      }
    }
    const int tiles = int(tiles_.size());
    split_ = segments > tiles && tiles * kv_heads_ < 4 * threads && segments * kv_heads_ <= kPartialMax;
    for (int tile = 0; tile < tiles; ++tile) {
      for (int segment = 0; segment < (split_ ? tiles_[tile].segments : 1); ++segment)
        units_.push_back({tile, segment});
    }
  }

  // How many parts run() divides into.
  int count() const { return int(units_.size()) * kv_heads_; }

  // q: [token][heads][head_dim], `stride` elements between tokens, and out likewise.
  void run(int layer, const KvPool<Type>& pool, const Element* q, Element* out, size_t stride,
           Range parts) const {
    for (int part = parts.first; part < parts.last; ++part) {
      attend(layer, pool, q, out, stride, units_[part / kv_heads_], part % kv_heads_);
    }
  }

  // Once all parts are done: merges what was split.
  void gather(Element* out, size_t stride) const {
    if (!split_) return;
    for (const Tile& tile : tiles_) {
      for (int head = 0; head < kv_heads_; ++head) gather(tile, head, out, stride);
    }
  }

 private:
  struct Tile {
    const RowView* row;
    int first, queries;  // in the row's (token, head of the group) order
    int first_segment, segments;
  };
  struct Unit {
    int tile, segment;
  };

  Softmax partial(const Tile& tile, int segment, int head) const {
    const size_t index = size_t(tile.first_segment + segment) * kv_heads_ + head;
    return Softmax::at(partials_ + index * Softmax::floats(head_dim_));
  }

  void attend(int layer, const KvPool<Type>& pool, const Element* q, Element* out, size_t stride,
              const Unit& unit, int head) const {
    const Tile& tile = tiles_[unit.tile];
    alignas(kLine) float memory[2][kQueriesMax * (kHeadDimMax + 2)];
    Queries<Type> queries;
    load(tile, head, q, stride, queries);
    if (split_) {
      const Softmax part = partial(tile, unit.segment, head);
      part.clear(tile.queries, head_dim_);
      dispatch(tile, queries, pool, layer, head, unit.segment, part);
      return;
    }
    const Softmax all = Softmax::at(memory[0]);
    const Softmax part = Softmax::at(memory[1]);
    all.clear(tile.queries, head_dim_);
    for (int segment = 0; segment < tile.segments; ++segment) {
      part.clear(tile.queries, head_dim_);
      dispatch(tile, queries, pool, layer, head, segment, part);
      merge(all, part, tile.queries, head_dim_);
    }
    store(tile, head, all, out, stride);
  }

  void gather(const Tile& tile, int head, Element* out, size_t stride) const {
    alignas(kLine) float memory[kQueriesMax * (kHeadDimMax + 2)];
    const Softmax all = Softmax::at(memory);
    all.clear(tile.queries, head_dim_);
    for (int segment = 0; segment < tile.segments; ++segment) {
      merge(all, partial(tile, segment, head), tile.queries, head_dim_);
    }
    store(tile, head, all, out, stride);
  }

  size_t offset(const Tile& tile, int first_token, int query, int head, size_t stride) const {
    const int group = heads_ / kv_heads_;
    const int flat = tile.first + query;
    return (first_token + flat / group) * stride + size_t(head * group + flat % group) * head_dim_;
  }

  bool on_tiles() const { return uses_tiles<Type>() && head_dim_ % 32 == 0; }

  void load(const Tile& tile, int head, const Element* q, size_t stride, Queries<Type>& to) const {
    to.scale = 1.44269504f / std::sqrt(float(head_dim_));
    for (int query = 0; query < tile.queries; ++query) {
      std::copy_n(q + offset(tile, tile.row->first_token, query, head, stride), head_dim_,
                  to.values + query * kHeadDimMax);
      to.visible[query] = tile.row->start + (tile.first + query) / (heads_ / kv_heads_) + 1;
    }
    to.alone = tile.queries == tile.row->tokens * (heads_ / kv_heads_);
    to.count = tile.queries;
    to.visible_max = to.visible[tile.queries - 1];
  }

  void store(const Tile& tile, int head, const Softmax& from, Element* out, size_t stride) const {
    for (int query = 0; query < tile.queries; ++query) {
      const __m512 total = _mm512_set1_ps(from.total[query]);
      for (int dim = 0; dim < head_dim_; dim += kLanes) {
        Type::narrow(out + offset(tile, tile.row->first_output, query, head, stride) + dim, 0xFFFF,
                     _mm512_div_ps(_mm512_loadu_ps(from.sums + query * head_dim_ + dim), total));
      }
    }
  }

  void dispatch(const Tile& tile, const Queries<Type>& queries, const KvPool<Type>& pool, int layer, int head,
                int segment, const Softmax& state) const {
    const auto attend = function(tile.queries);
    attend(queries, pool, tile.row->table, layer, head, segment, state);
  }

  using Function = void (*)(const Queries<Type>&, const KvPool<Type>&, const int32_t*, int, int, int,
                            const Softmax&);

  Function function(int queries) const {
#ifdef BATON_AMX
    if constexpr (Type::pair == 2) {
      if (on_tiles()) return attend_segment<Type, TileProducts>;
    }
#endif
    return vector_functions(std::make_integer_sequence<int, kVectorQueries>())[queries - 1];
  }

  template <int... kIndex>
  static const Function* vector_functions(std::integer_sequence<int, kIndex...>) {
    static constexpr Function functions[] = {attend_segment<Type, VectorProducts<Type, kIndex + 1>>...};
    return functions;
  }

  int heads_, kv_heads_, head_dim_;
  bool split_ = false;
  std::vector<Tile> tiles_;
  std::vector<Unit> units_;
  float* partials_ = nullptr;
};

}  // namespace baton
