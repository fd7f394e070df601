// A whole decoder: its weights, its KV pool, its workspace, and one forward step over them.
//
// Everything a step touches is carved at construction. Between layers the residual stream is float32;
// what enters a linear or attention is rounded to the model's type.
//
// A layer is five phases: qkv, attention, output, gate-up, down. What lies between them (RMSNorm, RoPE
// and the KV write, merging split attention) the last thread to finish a phase does alone where the step
// has few tokens; else it is a divided phase of its own. The last layer goes on, once its KV is written,
// with the rows that sample only.
#pragma once
#include "rows.hpp"
#include "weights.hpp"
#include "workspace.hpp"

namespace baton {

constexpr int kLightTokens = 8;  // up to here one thread alone is faster than all with one more phase

template <class Type>
class ModelOf : public Model {
 public:
  using Base = typename Type::Base;
  using Element = typename Base::Element;
  using Layer = typename Weights<Type>::Layer;

  explicit ModelOf(const Shape& shape)
      : shape_(shape),
        query_width_(shape.heads * shape.head_dim),
        key_width_(shape.kv_heads * shape.head_dim),
        attention_(shape.heads, shape.kv_heads, shape.head_dim, shape.tokens_max),
        last_attention_(shape.heads, shape.kv_heads, shape.head_dim, shape.samples_max),
        weights_(shape),
        space_(shape, weights_.expanded_elements()) {
    rows_.reserve(shape.tokens_max);
    endings_.reserve(shape.samples_max);
    carve_kv(), kv_.reserve(), carve_kv();
    std::memset(pool_.data, 0, pool_.elements() * sizeof(Element));
  }

  void load(Slot slot, int layer, const void* from) override { weights_.load(slot, layer, from, threads); }

  void forward(const Batch& batch) override {
    plan(batch);
    threads.run_shared([&](int thread) {
      const FlushDenormals flush;
      open_tiles();
      Walk walk{Phases::kFirst, thread, __rdtsc(), {}};
      embed(batch, walk);
      for (int layer = 0; layer < shape_.layers; ++layer) run_layer(batch, layer, walk);
      if (batch.samples > 0) sample(batch, walk);
      close_tiles();
    });
    for (int s = 0; s < batch.samples; ++s) batch.argmax[s] = space_.greedy.reduce(s, threads.count());
  }

  void zero(int block) override { pool_.zero(block); }
  void* block(int block) override { return pool_.data + block * pool_.block_elements(); }
  void copy(int source, int destination) override { pool_.copy(source, destination); }
  void read_kv(const int32_t* table, int start, int stop, void* wire) override {
    pool_.template exchange<true>(table, start, stop, static_cast<Element*>(wire));
  }
  void write_kv(const int32_t* table, int start, int stop, const void* wire) override {
    pool_.template exchange<false>(table, start, stop, static_cast<Element*>(const_cast<void*>(wire)));
  }

  void sizes(uint64_t* weights, uint64_t* kv, uint64_t* workspace, uint64_t* read_per_step) const override {
    *weights = weights_.bytes(), *kv = kv_.used(), *workspace = space_.arena.used();
    *read_per_step = weights_.bytes_read_per_step();
  }

 private:
  // Where a thread is in the step: all pass the same phases in the same order.
  struct Walk {
    int phase;
    int thread;
    uint64_t since;
    Ahead ahead;  // what it reads while it waits
  };

  void carve_kv() {
    pool_.layers = shape_.layers, pool_.kv_heads = shape_.kv_heads, pool_.head_dim = shape_.head_dim;
    pool_.block_size = shape_.block_size, pool_.blocks = shape_.blocks;
    pool_.data = kv_.carve<Element>(pool_.elements());
  }

  void plan(const Batch& batch) {
    rows_.clear();
    endings_.clear();
    for (int row = 0; row < batch.rows; ++row) {
      const int first = batch.row_first[row];
      rows_.push_back({first, batch.row_first[row + 1] - first, batch.row_start[row], first,
                       batch.tables + batch.table_first[row]});
      for (int token = first; token < batch.row_first[row + 1]; ++token) space_.row_of[token] = row;
    }
    for (int sample = 0; sample < batch.samples; ++sample) {
      const int token = batch.sample_tokens[sample];
      const RowView& row = rows_[space_.row_of[token]];
      endings_.push_back({token, 1, row.start + token - row.first_token, sample, row.table});
    }
    tokens_ = batch.row_first[batch.rows];
    attention_.plan(rows_, threads.count(), space_.partials);
    last_attention_.plan(endings_, threads.count(), space_.last_partials);
    phases_.begin(threads.count());
    space_.greedy.reset(threads.count());
  }

  // Divides a phase; the first thread's time is the phase's.
  template <class Body, class Tail>
  void divide(Walk& walk, Phase phase, int count, int unit, const Body& body, const Tail& tail) {
    const uint64_t waited =
        phases_.share(walk.phase++, walk.thread, count, unit, body, tail, [&] { return walk.ahead.fetch(); });
    if (walk.thread != 0) return;
    const uint64_t now = __rdtsc();
    phase_cycles[phase] += now - walk.since - waited;
    phase_cycles[kPhaseWait] += waited;
    walk.since = now;
  }

  // Does light work of `count` items at once where rows are few, and says so.
  template <class Body>
  bool at_once(int rows, int count, const Body& body) const {
    if (rows <= kLightTokens) body(Range{0, count});
    return rows <= kLightTokens;
  }

  // x [rows, K] times weight, then `between` over `count` items that need all of it. `next` is the linear
  // that follows.
  template <class Finish, class Body>
  void linear(Walk& walk, Phase phase, const Packed<Type>& weight, const Element* x, size_t stride, int rows,
              const Finish& epilogue, Phase between_phase, int count, const Body& between,
              const Packed<Type>* next) {
    walk.ahead = next == nullptr ? Ahead{} : ahead_of(*next, walk.thread, threads.count());
    divide(
        walk, phase, weight.panels(), panels_at_once<Type>(rows),
        [&](Range panels) {
          Element* expanded = space_.expanded + walk.thread * space_.expanded_stride;
          multiply<Type>(x, stride, rows, weight, panels, expanded, epilogue);
        },
        [&] { at_once(rows, count, between); });
    if (rows > kLightTokens && count > 0) divide(walk, between_phase, count, 1, between, [] {});
  }

  void embed(const Batch& batch, Walk& walk) {
    const int half = shape_.head_dim / 2;
    divide(
        walk, kPhaseNorm, tokens_, 1,
        [&](Range mine) {
          for (int token = mine.first; token < mine.last; ++token) {
            const RowView& row = rows_[space_.row_of[token]];
            rotary_angles(row.start + token - row.first_token, weights_.inverse_frequency, half,
                          space_.cosines + token * half, space_.sines + token * half);
            weights_.embed(batch.tokens[token], space_.residual + size_t(token) * shape_.hidden);
          }
          normalise(space_.residual, weights_.layers[0].input_norm, mine);
        },
        [] {});
  }

  void run_layer(const Batch& batch, int index, Walk& walk) {
    const Layer& layer = weights_.layers[index];
    const bool last = index + 1 == shape_.layers;
    linear(
        walk, kPhaseQkv, layer.qkv, space_.normed, space_.normed_stride, tokens_,
        [&](int token, int panel, const float* sums) {
          float* to = space_.qkv + token * space_.qkv_stride + panel * kPanel;
          for (int i = 0; i < kPanel; i += kLanes) {
            const __m512 sum = _mm512_load_ps(sums + i);
            const float* bias = layer.qkv_bias + panel * kPanel + i;
            _mm512_storeu_ps(to + i, shape_.qkv_bias ? _mm512_add_ps(sum, _mm512_loadu_ps(bias)) : sum);
          }
        },
        kPhaseRotary, tokens_ * shape_.kv_heads, [&](Range items) { place(layer, index, items); },
        &layer.output);
    const Attention<Base>& attention = last ? last_attention_ : attention_;
    const int rows = last ? batch.samples : tokens_;
    float* residual = last ? space_.sampled : space_.residual;
    if (rows == 0) return;
    divide(
        walk, kPhaseAttention, attention.count(), 1,
        [&](Range parts) {
          attention.run(index, pool_, space_.queries, space_.attended, space_.query_stride, parts);
        },
        [&] {
          attention.gather(space_.attended, space_.query_stride);
          if (last) keep_sampled(batch);
        });
    const auto norm_with = [&](const float* weight) {
      return [=, this](Range mine) { normalise(residual, weight, mine); };
    };
    linear(walk, kPhaseOutput, layer.output, space_.attended, space_.query_stride, rows, add_to(residual),
           kPhaseNorm, rows, norm_with(layer.post_norm), &layer.gate_up);
    linear(
        walk, kPhaseGateUp, layer.gate_up, space_.normed, space_.normed_stride, rows,
        [&](int token, int panel, const float* sums) {
          const __m512 gated =
              _mm512_mul_ps(silu<Base::exp2_degree>(_mm512_load_ps(sums)), _mm512_load_ps(sums + kLanes));
          Base::narrow(space_.gated + token * space_.gated_stride + panel * kLanes, 0xFFFF, gated);
        },
        kPhaseGateUp, 0, [](Range) {}, &layer.down);
    linear(walk, kPhaseDown, layer.down, space_.gated, space_.gated_stride, rows, add_to(residual),
           kPhaseNorm, rows, norm_with(last ? weights_.final_norm : weights_.layers[index + 1].input_norm),
           last ? &weights_.head : &weights_.layers[index + 1].qkv);
  }

  auto add_to(float* residual) const {
    return [this, residual](int token, int panel, const float* sums) {
      float* to = residual + size_t(token) * shape_.hidden + panel * kPanel;
      for (int i = 0; i < kPanel && panel * kPanel + i < shape_.hidden; i += kLanes) {
        _mm512_storeu_ps(to + i, _mm512_add_ps(_mm512_loadu_ps(to + i), _mm512_load_ps(sums + i)));
      }
    };
  }

  void normalise(const float* residual, const float* weight, Range rows) const {
    for (int row = rows.first; row < rows.last; ++row) {
      rms_norm<Base>(residual + size_t(row) * shape_.hidden, weight, shape_.hidden, shape_.epsilon,
                     space_.normed + row * space_.normed_stride);
    }
  }

  void keep_sampled(const Batch& batch) const {
    for (int sample = 0; sample < batch.samples; ++sample) {
      std::copy_n(space_.residual + size_t(batch.sample_tokens[sample]) * shape_.hidden, shape_.hidden,
                  space_.sampled + size_t(sample) * shape_.hidden);
    }
  }

  // Normalises (Qwen3) and rotates q and k of (token, KV head) items; q goes to queries, k and v to the pool.
  void place(const Layer& layer, int index, Range items) const {
    const int group = shape_.heads / shape_.kv_heads;
    const int width = shape_.head_dim;
    const int half = width / 2;
    for (int item = items.first; item < items.last; ++item) {
      const int token = item / shape_.kv_heads;
      const int head = item % shape_.kv_heads;
      float* q = space_.qkv + token * space_.qkv_stride + head * group * width;
      float* k = space_.qkv + token * space_.qkv_stride + query_width_ + head * width;
      for (int i = 0; i <= group; ++i) {
        float* one = i < group ? q + i * width : k;
        if (shape_.qk_norm)
          rms_norm_head(one, i < group ? layer.query_norm : layer.key_norm, width, shape_.epsilon);
        rotate(one, space_.cosines + token * half, space_.sines + token * half, half);
      }
      Element* queries = space_.queries + token * space_.query_stride + head * group * width;
      for (int i = 0; i < group * width; i += kLanes) {
        Base::narrow(queries + i, 0xFFFF, _mm512_loadu_ps(q + i));
      }
      const RowView& row = rows_[space_.row_of[token]];
      const int position = row.start + token - row.first_token;
      pool_.put(pool_.group(row.table, position, index, head), position % kGroup, k, k + key_width_);
    }
  }

  // The head: logits where they are wanted, the greedy token always.
  void sample(const Batch& batch, Walk& walk) {
    linear(
        walk, kPhaseHead, weights_.head, space_.normed, space_.normed_stride, batch.samples,
        [&](int s, int panel, const float* sums) {
          for (int i = 0; i < kPanel; i += kLanes) {
            const int token = panel * kPanel + i;
            const __mmask16 real = mask_of(shape_.vocab - token);
            const __m512 value = _mm512_load_ps(sums + i);
            if (batch.wants_logits[s] && real)
              _mm512_mask_storeu_ps(batch.logits + size_t(s) * shape_.vocab + token, real, value);
            space_.greedy.see(walk.thread, s, token, real, value);
          }
        },
        kPhaseHead, 0, [](Range) {}, nullptr);
  }

  Shape shape_;
  int query_width_, key_width_;
  Arena kv_;
  Attention<Base> attention_, last_attention_;
  Weights<Type> weights_;
  Workspace<Base> space_;
  Phases phases_;
  std::vector<RowView> rows_, endings_;
  KvPool<Base> pool_;
  int tokens_ = 0;
};

}  // namespace baton
