// A whole decoder: its weights, its KV pool, its workspace, and one forward step over them.
//
// Everything a step touches is carved at construction. Between layers the residual stream is float32;
// what enters a linear or attention is rounded to the model's type.
#pragma once
#include <limits>

#include "attention.hpp"
#include "interface.hpp"
#include "rows.hpp"
#include "weights.hpp"

namespace baton {

constexpr int kLinears = 4;  // of a layer

template <class Type>
class ModelOf : public Model {
 public:
  using Element = typename Type::Element;
  using Layer = typename Weights<Type>::Layer;

  explicit ModelOf(const Shape& shape)
      : shape_(shape),
        query_width_(shape.heads * shape.head_dim),
        key_width_(shape.kv_heads * shape.head_dim),
        normed_stride_(row_stride<Type>(shape.hidden)),
        query_stride_(row_stride<Type>(query_width_)),
        gated_stride_(row_stride<Type>(shape.intermediate)),
        attention_(shape.layers, shape.heads, shape.kv_heads, shape.head_dim, shape.tokens_max),
        weights_(shape),
        next_panel_(new std::atomic<int>[shape.layers * kLinears + 1]) {
    rows_.reserve(shape.tokens_max);
    carve_kv(), kv_.reserve(), carve_kv();
    carve_workspace(), workspace_.reserve(), carve_workspace();
    std::memset(pool_.data, 0, pool_.elements() * sizeof(Element));
  }

  void load(Slot slot, int layer, const void* from) override { weights_.load(slot, layer, from, threads); }

  void forward(const Batch& batch) override {
    rows_.clear();
    for (int row = 0; row < batch.rows; ++row) {
      const int first = batch.row_first[row];
      rows_.push_back({first, batch.row_first[row + 1] - first, batch.row_start[row],
                       batch.tables + batch.table_first[row]});
      for (int token = first; token < batch.row_first[row + 1]; ++token) row_of_[token] = row;
    }
    tokens_ = batch.row_first[batch.rows];
    attention_.plan(rows_, threads.count());
    for (int i = 0; i <= shape_.layers * kLinears; ++i) next_panel_[i].store(0, std::memory_order_relaxed);
    threads.run([&](int thread) {
      const FlushDenormals flush;
      open_tiles();
      embed(batch, thread);
      for (int layer = 0; layer < shape_.layers; ++layer) run_layer(layer, thread);
      if (batch.samples > 0) sample(batch, thread);
      close_tiles();
    });
    reduce_argmax(batch);
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
    *weights = weights_.bytes(), *kv = kv_.used(), *workspace = workspace_.used();
    *read_per_step = weights_.bytes_read_per_step();
  }

 private:
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
      rotary_angles(row.start + token - row.first_token, weights_.inverse_frequency, half,
                    cosines_ + token * half, sines_ + token * half);
      weights_.embed(batch.tokens[token], residual_ + size_t(token) * shape_.hidden);
    }
  }

  void run_layer(int index, int thread) {
    const Layer& layer = weights_.layers[index];
    normalise(layer.input_norm, thread);
    linear(layer.qkv, normed_, normed_stride_, index * kLinears,
           [&](int token, int panel, const float* sums) {
             float* to = qkv_ + token * qkv_stride() + panel * kPanel;
             for (int i = 0; i < kPanel; i += kLanes) {
               const __m512 sum = _mm512_load_ps(sums + i);
               _mm512_storeu_ps(to + i,
                                shape_.qkv_bias
                                    ? _mm512_add_ps(sum, _mm512_loadu_ps(layer.qkv_bias + panel * kPanel + i))
                                    : sum);
             }
           });
    finish(kPhaseQkv, thread);
    place(layer, index, thread);
    attention_.run(index, pool_, queries_, attended_, query_stride_, thread, threads);
    finish(kPhaseAttention, thread);
    linear(layer.output, attended_, query_stride_, index * kLinears + 1, add_to_residual());
    finish(kPhaseOutput, thread);
    normalise(layer.post_norm, thread);
    linear(layer.gate_up, normed_, normed_stride_, index * kLinears + 2,
           [&](int token, int panel, const float* sums) {
             const __m512 gated = _mm512_mul_ps(silu(_mm512_load_ps(sums)), _mm512_load_ps(sums + kLanes));
             Type::narrow(gated_ + token * gated_stride_ + panel * kLanes, 0xFFFF, gated);
           });
    finish(kPhaseGateUp, thread);
    linear(layer.down, gated_, gated_stride_, index * kLinears + 3, add_to_residual());
    finish(kPhaseDown, thread);
  }

  template <class Finish>
  void linear(const Packed<Type>& weight, const Element* x, size_t stride, int counter,
              const Finish& epilogue) {
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
      rms_norm<Type>(residual_ + size_t(token) * shape_.hidden, weight, shape_.hidden, shape_.epsilon,
                     normed_ + token * normed_stride_);
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
        if (shape_.qk_norm)
          rms_norm_head(one, i < group ? layer.query_norm : layer.key_norm, shape_.head_dim, shape_.epsilon);
        rotate(one, cosines_ + token * half, sines_ + token * half, half);
      }
      for (int i = 0; i < group * shape_.head_dim; i += kLanes) {
        Type::narrow(queries_ + token * query_stride_ + head * group * shape_.head_dim + i, 0xFFFF,
                     _mm512_loadu_ps(q + i));
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
      rms_norm<Type>(residual_ + size_t(batch.sample_tokens[s]) * shape_.hidden, weights_.final_norm,
                     shape_.hidden, shape_.epsilon, normed_ + s * normed_stride_);
    }
    float* best = best_value_ + size_t(thread) * shape_.samples_max * kLanes;
    int32_t* best_token = best_token_ + size_t(thread) * shape_.samples_max * kLanes;
    std::fill(best, best + batch.samples * kLanes, -std::numeric_limits<float>::infinity());
    std::fill(best_token, best_token + batch.samples * kLanes, 0);
    finish(kPhaseNorm, thread);
    const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    multiply_shared<Type>(
        normed_, normed_stride_, batch.samples, weights_.head, next_panel_[shape_.layers * kLinears],
        threads.count(), [&](int s, int panel, const float* sums) {
          for (int i = 0; i < kPanel; i += kLanes) {
            const int token = panel * kPanel + i;
            const __mmask16 real = mask_of(shape_.vocab - token);
            const __m512 value = _mm512_load_ps(sums + i);
            if (batch.wants_logits[s] && real)
              _mm512_mask_storeu_ps(batch.logits + size_t(s) * shape_.vocab + token, real, value);
            const __m512 old = _mm512_loadu_ps(best + s * kLanes);
            const __mmask16 better = _mm512_mask_cmp_ps_mask(real, value, old, _CMP_GT_OQ);
            _mm512_mask_storeu_ps(best + s * kLanes, better, value);
            _mm512_mask_storeu_epi32(best_token + s * kLanes, better,
                                     _mm512_add_epi32(lane, _mm512_set1_epi32(token)));
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
          const bool better =
              best_value_[at + i] > value || (best_value_[at + i] == value && best_token_[at + i] < token);
          if (better) value = best_value_[at + i], token = best_token_[at + i];
        }
      }
      batch.argmax[s] = token;
    }
  }

  Shape shape_;
  int query_width_, key_width_;
  size_t normed_stride_, query_stride_, gated_stride_;
  Arena kv_, workspace_;
  Attention<Type> attention_;
  Weights<Type> weights_;
  std::unique_ptr<std::atomic<int>[]> next_panel_;  // of each linear of the step
  std::vector<RowView> rows_;
  KvPool<Type> pool_;
  Element *normed_ = nullptr, *queries_ = nullptr, *attended_ = nullptr, *gated_ = nullptr;
  float *residual_ = nullptr, *qkv_ = nullptr;
  float *cosines_ = nullptr, *sines_ = nullptr, *best_value_ = nullptr;
  int32_t *row_of_ = nullptr, *best_token_ = nullptr;
  int tokens_ = 0;
  uint64_t phase_start_ = 0;
};

}  // namespace baton
