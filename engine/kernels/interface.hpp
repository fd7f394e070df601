// What the C interface sees of a model, whatever its type: shape, weights to load, steps to run.
#pragma once
#include "threads.hpp"

namespace baton {

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
  kQkv,
  kOutput,
  kGateUp,
  kDown,
  kHead,
  kEmbedding,
  kInputNorm,
  kPostNorm,
  kQueryNorm,
  kKeyNorm,
  kQkvBias,
  kFinalNorm,
  kInverseFrequency
};

enum Phase {
  kPhaseNorm,
  kPhaseQkv,
  kPhaseRotary,
  kPhaseAttention,
  kPhaseOutput,
  kPhaseGateUp,
  kPhaseDown,
  kPhaseHead,
  kPhaseWait,
  kPhases
};

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
  virtual void* block(int block) = 0;
  virtual void copy(int source, int destination) = 0;
  virtual void read_kv(const int32_t* table, int start, int stop, void* wire) = 0;
  virtual void write_kv(const int32_t* table, int start, int stop, const void* wire) = 0;
  virtual void sizes(uint64_t* weights, uint64_t* kv, uint64_t* workspace, uint64_t* read_per_step) const = 0;
  Threads threads{1};
  uint64_t phase_cycles[kPhases] = {};
};

}  // namespace baton
