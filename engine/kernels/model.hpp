// A whole decoder: its weights, its KV pool, its workspace, and one forward step over them.
//
// Everything a step touches is carved at construction. Between layers the residual stream is float32;
// what enters a linear or attention is rounded to the model's type.
#pragma once
#include <algorithm>
#include <limits>
#include <memory>

#include "attention.hpp"
#include "kv_pool.hpp"
#include "linear.hpp"
#include "rows.hpp"
#include "threads.hpp"

namespace baton {

constexpr int kLinears = 4;  // of a layer

struct Shape {
  int32_t vocab, hidden, intermediate, layers, heads, kv_heads, head_dim;
  int32_t block_size, blocks;
  int32_t tokens_max, samples_max;  // of one step
  int32_t tied, qkv_bias, qk_norm;
  float epsilon;
};

// What load() fills. QKV is [q; k; v] and GATE_UP is [gate; up], row-major in the model's type; norms,
// biases and inverse frequencies are float32.
enum Slot : int32_t {
  kQkv, kOutput, kGateUp, kDown, kHead, kEmbedding,
  kInputNorm, kPostNorm, kQueryNorm, kKeyNorm, kQkvBias, kFinalNorm, kInverseFrequency
};

enum Phase { kPhaseNorm, kPhaseQkv, kPhaseRotary, kPhaseAttention, kPhaseOutput, kPhaseGateUp, kPhaseDown, kPhaseHead, kPhases };

// One step. Row r has tokens row_first[r] .. row_first[r + 1] at positions from row_start[r]; its blocks
// are tables[table_first[r] ...]. Sample s wants the logits after token sample_tokens[s]: argmax[s]
// always, and logits[s * vocab ...] where wants_logits[s].
struct Batch {
  int32_t rows, samples;
  const int32_t *tokens, *row_first, *row_start, *table_first, *tables, *sample_tokens, *wants_logits;
  float* logits;
  int32_t* argmax;
};

class Model {
 public:
  virtual ~Model() = default;
  virtual void load(Slot slot, int layer, const void* from) = 0;
  virtual void forward(const Batch& batch) = 0;
  virtual void zero(int block) = 0;
  virtual void copy(int source, int destination) = 0;
  virtual void read_kv(const int32_t* table, int start, int stop, void* wire) = 0;
  virtual void write_kv(const int32_t* table, int start, int stop, const void* wire) = 0;
  virtual void sizes(uint64_t* weights, uint64_t* kv, uint64_t* workspace, uint64_t* read_per_step) const = 0;
  Threads threads{1};
  uint64_t phase_cycles[kPhases] = {};
};

template <class Type>
class ModelOf : public Model {
 public:
  using Element = typename Type::Element;

  explicit ModelOf(const Shape& shape)
      : shape_(shape),
        query_width_(shape.heads * shape.head_dim),
        key_width_(shape.kv_heads * shape.head_dim),
        normed_stride_(row_stride<Type>(shape.hidden)),
        query_stride_(row_stride<Type>(query_width_)),
        gated_stride_(row_stride<Type>(shape.intermediate)),
        attention_(shape.layers, shape.heads, shape.kv_heads, shape.head_dim, shape.tokens_max),
        layers_(shape.layers),
        next_panel_(new std::atomic<int>[shape.layers * kLinears + 1]) {
    rows_.reserve(shape.tokens_max);
    carve_weights(), weights_.reserve(), carve_weights();
    carve_kv(), kv_.reserve(), carve_kv();
    carve_workspace(), workspace_.reserve(), carve_workspace();
    std::memset(pool_.data, 0, pool_.elements() * sizeof(Element));
  }

  void load(Slot slot, int layer, const void* from) override {
    Layer& to = layers_[layer];
    switch (slot) {
      case kQkv: return load_packed(to.qkv, from, false);
      case kOutput: return load_packed(to.output, from, false);
      case kGateUp: return load_packed(to.gate_up, from, true);
      case kDown: return load_packed(to.down, from, false);
      case kHead: return load_packed(head_, from, false);
      case kEmbedding: std::memcpy(embedding_, from, sizeof(Element) * shape_.vocab * shape_.hidden); return;
      case kInputNorm: return load_floats(to.input_norm, from, shape_.hidden);
      case kPostNorm: return load_floats(to.post_norm, from, shape_.hidden);
      case kQueryNorm: return load_floats(to.query_norm, from, shape_.head_dim);
      case kKeyNorm: return load_floats(to.key_norm, from, shape_.head_dim);
      case kQkvBias: return load_floats(to.qkv_bias, from, to.qkv.rows);
      case kFinalNorm: return load_floats(final_norm_, from, shape_.hidden);
      case kInverseFrequency: return load_floats(inverse_frequency_, from, shape_.head_dim / 2);
    }
  }

  void forward(const Batch& batch) override {
    rows_.clear();
    for (int row = 0; row < batch.rows; ++row) {
      const int first = batch.row_first[row];
      rows_.push_back({first, batch.row_first[row + 1] - first, batch.row_start[row], batch.tables + batch.table_first[row]});
      for (int token = first; token < batch.row_first[row + 1]; ++token) row_of_[token] = row;
    }
    tokens_ = batch.row_first[batch.rows];
    attention_.plan(rows_, threads.count());
    for (int i = 0; i <= shape_.layers * kLinears; ++i) next_panel_[i].store(0, std::memory_order_relaxed);
    threads.run([&](int thread) {
      open_tiles();
      embed(batch, thread);
      for (int layer = 0; layer < shape_.layers; ++layer) run_layer(layer, thread);
      if (batch.samples > 0) sample(batch, thread);
      close_tiles();
    });
    reduce_argmax(batch);
  }

  void zero(int block) override { pool_.zero(block); }
  void copy(int source, int destination) override { pool_.copy(source, destination); }
  void read_kv(const int32_t* table, int start, int stop, void* wire) override {
    pool_.template exchange<true>(table, start, stop, static_cast<Element*>(wire));
  }
  void write_kv(const int32_t* table, int start, int stop, const void* wire) override {
    pool_.template exchange<false>(table, start, stop, static_cast<Element*>(const_cast<void*>(wire)));
  }

  void sizes(uint64_t* weights, uint64_t* kv, uint64_t* workspace, uint64_t* read_per_step) const override {
    *weights = weights_.used(), *kv = kv_.used(), *workspace = workspace_.used();
    const Layer& layer = layers_[0];
    const size_t linears = layer.qkv.elements() + layer.output.elements() + layer.gate_up.elements() + layer.down.elements();
    *read_per_step = (linears * shape_.layers + head_.elements()) * sizeof(Element);
  }

 private:
  struct Layer {
    Packed<Type> qkv, output, gate_up, down;
    float *input_norm, *post_norm, *query_norm, *key_norm, *qkv_bias;
  };

  void carve_packed(Packed<Type>& to, int rows, int columns) {
    to.rows = rows, to.columns = columns;
    to.data = weights_.carve<Element>(to.elements());
  }

  void carve_weights() {
    for (Layer& layer : layers_) {
      carve_packed(layer.qkv, query_width_ + 2 * key_width_, shape_.hidden);
      carve_packed(layer.output, shape_.hidden, query_width_);
      carve_packed(layer.gate_up, 2 * shape_.intermediate, shape_.hidden);
      carve_packed(layer.down, shape_.hidden, shape_.intermediate);
      layer.input_norm = weights_.carve<float>(shape_.hidden);
      layer.post_norm = weights_.carve<float>(shape_.hidden);
      layer.query_norm = weights_.carve<float>(shape_.head_dim);
      layer.key_norm = weights_.carve<float>(shape_.head_dim);
      layer.qkv_bias = weights_.carve<float>(layer.qkv.panels() * kPanel);
    }
    carve_packed(head_, shape_.vocab, shape_.hidden);
    if (!shape_.tied) embedding_ = weights_.carve<Element>(size_t(shape_.vocab) * shape_.hidden);
    final_norm_ = weights_.carve<float>(shape_.hidden);
    inverse_frequency_ = weights_.carve<float>(shape_.head_dim / 2);
  }

  void carve_kv() {
    pool_.layers = shape_.layers, pool_.kv_heads = shape_.kv_heads, pool_.head_dim = shape_.head_dim;
    pool_.block_size = shape_.block_size, pool_.blocks = shape_.blocks;
    pool_.data = kv_.carve<Element>(pool_.elements());
  }

  void carve_workspace() {
    const size_t tokens = shape_.tokens_max;
    const size_t samples = shape_.samples_max;
    const size_t padded = std::max(tokens, samples) + kTileRowsPadding;
    residual_ = workspace_.carve<float>(tokens * shape_.hidden);
    qkv_ = workspace_.carve<float>(tokens * qkv_stride());
    normed_ = workspace_.carve<Element>(padded * normed_stride_);
    queries_ = workspace_.carve<Element>(tokens * query_stride_);
    attended_ = workspace_.carve<Element>(padded * query_stride_);
    gated_ = workspace_.carve<Element>(padded * gated_stride_);
    cosines_ = workspace_.carve<float>(tokens * shape_.head_dim / 2);
    sines_ = workspace_.carve<float>(tokens * shape_.head_dim / 2);
    row_of_ = workspace_.carve<int32_t>(tokens);
    best_value_ = workspace_.carve<float>(samples * kThreadsMax * kLanes);
    best_token_ = workspace_.carve<int32_t>(samples * kThreadsMax * kLanes);
    attention_.carve(workspace_);
  }

  size_t qkv_stride() const { return round_up(query_width_ + 2 * key_width_, kPanel); }

  void load_packed(const Packed<Type>& to, const void* from, bool halves) {
    threads.run([&](int thread) {
      pack<Type>(to, static_cast<const Element*>(from), halves, share_of(to.panels(), thread, threads.count()));
    });
  }

  static void load_floats(float* to, const void* from, int count) { std::memcpy(to, from, sizeof(float) * count); }

  Range my_tokens(int thread) const { return share_of(tokens_, thread, threads.count()); }

  // Ends a phase: nobody goes on before all are done. The first thread's time is the phase's.
  void finish(Phase phase, int thread) {
    threads.barrier();
    if (thread != 0) return;
    const uint64_t now = __rdtsc();
    phase_cycles[phase] += now - phase_start_;
    phase_start_ = now;
  }

  void embed(const Batch& batch, int thread) {
    if (thread == 0) phase_start_ = __rdtsc();
    const Range mine = my_tokens(thread);
    const int half = shape_.head_dim / 2;
    for (int token = mine.first; token < mine.last; ++token) {
      const RowView& row = rows_[row_of_[token]];
      rotary_angles(row.start + token - row.first_token, inverse_frequency_, half, cosines_ + token * half, sines_ + token * half);
      float* to = residual_ + size_t(token) * shape_.hidden;
      if (shape_.tied) {
        unpack_row<Type>(head_, batch.tokens[token], to);
        continue;
      }
      const Element* from = embedding_ + size_t(batch.tokens[token]) * shape_.hidden;
      for (int i = 0; i < shape_.hidden; i += kLanes) _mm512_storeu_ps(to + i, Type::widen(from + i));
    }
  }

  void run_layer(int index, int thread) {
    const Layer& layer = layers_[index];
    normalise(layer.input_norm, thread);
    linear(layer.qkv, normed_, normed_stride_, index * kLinears, [&](int token, int panel, const float* sums) {
      float* to = qkv_ + token * qkv_stride() + panel * kPanel;
      for (int i = 0; i < kPanel; i += kLanes) {
        const __m512 sum = _mm512_load_ps(sums + i);
        _mm512_storeu_ps(to + i, shape_.qkv_bias ? _mm512_add_ps(sum, _mm512_loadu_ps(layer.qkv_bias + panel * kPanel + i)) : sum);
      }
    });
    finish(kPhaseQkv, thread);
    place(layer, index, thread);
    attention_.run(index, pool_, queries_, attended_, query_stride_, thread, threads);
    finish(kPhaseAttention, thread);
    linear(layer.output, attended_, query_stride_, index * kLinears + 1, add_to_residual());
    finish(kPhaseOutput, thread);
    normalise(layer.post_norm, thread);
    linear(layer.gate_up, normed_, normed_stride_, index * kLinears + 2, [&](int token, int panel, const float* sums) {
      const __m512 gated = _mm512_mul_ps(silu(_mm512_load_ps(sums)), _mm512_load_ps(sums + kLanes));
      Type::narrow(gated_ + token * gated_stride_ + panel * kLanes, 0xFFFF, gated);
    });
    finish(kPhaseGateUp, thread);
    linear(layer.down, gated_, gated_stride_, index * kLinears + 3, add_to_residual());
    finish(kPhaseDown, thread);
  }

  template <class Finish>
  void linear(const Packed<Type>& weight, const Element* x, size_t stride, int counter, const Finish& epilogue) {
    multiply_shared<Type>(x, stride, tokens_, weight, next_panel_[counter], threads.count(), epilogue);
  }

  auto add_to_residual() {
    return [this](int token, int panel, const float* sums) {
      float* to = residual_ + size_t(token) * shape_.hidden + panel * kPanel;
      for (int i = 0; i < kPanel && panel * kPanel + i < shape_.hidden; i += kLanes) {
        _mm512_storeu_ps(to + i, _mm512_add_ps(_mm512_loadu_ps(to + i), _mm512_load_ps(sums + i)));
      }
    };
  }

  void normalise(const float* weight, int thread) {
    const Range mine = my_tokens(thread);
    for (int token = mine.first; token < mine.last; ++token) {
      rms_norm<Type>(residual_ + size_t(token) * shape_.hidden, weight, shape_.hidden, shape_.epsilon, normed_ + token * normed_stride_);
    }
    finish(kPhaseNorm, thread);
  }

  // Normalises (Qwen3) and rotates q and k; q goes to queries_, k and v to the pool.
  void place(const Layer& layer, int index, int thread) {
    const Range mine = share_of(tokens_ * shape_.kv_heads, thread, threads.count());
    const int group = shape_.heads / shape_.kv_heads;
    const int half = shape_.head_dim / 2;
    for (int item = mine.first; item < mine.last; ++item) {
      const int token = item / shape_.kv_heads;
      const int head = item % shape_.kv_heads;
      float* q = qkv_ + token * qkv_stride() + head * group * shape_.head_dim;
      float* k = qkv_ + token * qkv_stride() + query_width_ + head * shape_.head_dim;
      for (int i = 0; i <= group; ++i) {
        float* one = i < group ? q + i * shape_.head_dim : k;
        if (shape_.qk_norm) rms_norm_head(one, i < group ? layer.query_norm : layer.key_norm, shape_.head_dim, shape_.epsilon);
        rotate(one, cosines_ + token * half, sines_ + token * half, half);
      }
      for (int i = 0; i < group * shape_.head_dim; i += kLanes) {
        Type::narrow(queries_ + token * query_stride_ + head * group * shape_.head_dim + i, 0xFFFF, _mm512_loadu_ps(q + i));
      }
      const RowView& row = rows_[row_of_[token]];
      const int position = row.start + token - row.first_token;
      pool_.put(pool_.group(row.table, position, index, head), position % kGroup, k, k + key_width_);
    }
    finish(kPhaseRotary, thread);
  }

  // Final norm and head, only for the rows that sample.
  void sample(const Batch& batch, int thread) {
    const Range mine = share_of(batch.samples, thread, threads.count());
    for (int s = mine.first; s < mine.last; ++s) {
      rms_norm<Type>(residual_ + size_t(batch.sample_tokens[s]) * shape_.hidden, final_norm_, shape_.hidden, shape_.epsilon, normed_ + s * normed_stride_);
    }
    float* best = best_value_ + size_t(thread) * shape_.samples_max * kLanes;
    int32_t* best_token = best_token_ + size_t(thread) * shape_.samples_max * kLanes;
    std::fill(best, best + batch.samples * kLanes, -std::numeric_limits<float>::infinity());
    std::fill(best_token, best_token + batch.samples * kLanes, 0);
    finish(kPhaseNorm, thread);
    const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    multiply_shared<Type>(normed_, normed_stride_, batch.samples, head_, next_panel_[shape_.layers * kLinears],
                          threads.count(), [&](int s, int panel, const float* sums) {
      for (int i = 0; i < kPanel; i += kLanes) {
        const int token = panel * kPanel + i;
        const __mmask16 real = mask_of(shape_.vocab - token);
        const __m512 value = _mm512_load_ps(sums + i);
        if (batch.wants_logits[s] && real) _mm512_mask_storeu_ps(batch.logits + size_t(s) * shape_.vocab + token, real, value);
        const __m512 old = _mm512_loadu_ps(best + s * kLanes);
        const __mmask16 better = _mm512_mask_cmp_ps_mask(real, value, old, _CMP_GT_OQ);
        _mm512_mask_storeu_ps(best + s * kLanes, better, value);
        _mm512_mask_storeu_epi32(best_token + s * kLanes, better, _mm512_add_epi32(lane, _mm512_set1_epi32(token)));
      }
    });
    finish(kPhaseHead, thread);
  }

  // The greedy token: the largest logit, of equals the lowest id.
  void reduce_argmax(const Batch& batch) {
    for (int s = 0; s < batch.samples; ++s) {
      float value = -std::numeric_limits<float>::infinity();
      int token = 0;
      for (int thread = 0; thread < threads.count(); ++thread) {
        const size_t at = (size_t(thread) * shape_.samples_max + s) * kLanes;
        for (int i = 0; i < kLanes; ++i) {
          const bool better = best_value_[at + i] > value || (best_value_[at + i] == value && best_token_[at + i] < token);
          if (better) value = best_value_[at + i], token = best_token_[at + i];
        }
      }
      batch.argmax[s] = token;
    }
  }

  Shape shape_;
  int query_width_, key_width_;
  size_t normed_stride_, query_stride_, gated_stride_;
  Arena weights_, kv_, workspace_;
  Attention<Type> attention_;
  std::vector<Layer> layers_;
  std::unique_ptr<std::atomic<int>[]> next_panel_;  // of each linear of the step
  std::vector<RowView> rows_;
  KvPool<Type> pool_;
  Packed<Type> head_;
  Element *embedding_ = nullptr, *normed_ = nullptr, *queries_ = nullptr, *attended_ = nullptr, *gated_ = nullptr;
  float *final_norm_ = nullptr, *inverse_frequency_ = nullptr, *residual_ = nullptr, *qkv_ = nullptr;
  float *cosines_ = nullptr, *sines_ = nullptr, *best_value_ = nullptr;
  int32_t *row_of_ = nullptr, *best_token_ = nullptr;
  int tokens_ = 0;
  uint64_t phase_start_ = 0;
};

}  // namespace baton
