// The C interface of the kernels, called through ctypes; see binding.py for the same in Python.
// A function that can fail returns nullptr or nonzero; nothing throws through this border.
#include "measure.hpp"
#include "model.hpp"

using namespace baton;

extern "C" {

// kind: 0 float32, 1 bfloat16, 2 int8 weights in groups with bfloat16 activations and KV.
void* baton_create(const Shape* shape, int32_t kind, int32_t threads) {
  try {
    Model* model = nullptr;
#ifdef BATON_BFLOAT16
    if (kind == 1) model = new ModelOf<BFloat16>(*shape);
    if (kind == 2) model = new ModelOf<GroupedInt8>(*shape);
#endif
    if (kind == 0) model = new ModelOf<Float32>(*shape);
    if (model != nullptr) model->threads.resize(std::clamp(threads, 1, kThreadsMax));
    return model;
  } catch (const std::exception&) {
    return nullptr;
  }
}

void baton_destroy(void* model) { delete static_cast<Model*>(model); }

void baton_set_threads(void* model, int32_t threads) {
  static_cast<Model*>(model)->threads.resize(std::clamp(threads, 1, kThreadsMax));
}

void baton_load(void* model, int32_t slot, int32_t layer, const void* from) {
  static_cast<Model*>(model)->load(Slot(slot), layer, from);
}

void baton_forward(void* model, const Batch* batch) { static_cast<Model*>(model)->forward(*batch); }

void baton_zero_block(void* model, int32_t block) { static_cast<Model*>(model)->zero(block); }

void baton_copy_block(void* model, int32_t source, int32_t destination) {
  static_cast<Model*>(model)->copy(source, destination);
}

// Of a block's bytes, kv_bytes / blocks of them: what a copy to or from the host moves.
void* baton_block(void* model, int32_t block) { return static_cast<Model*>(model)->block(block); }

void baton_read_kv(void* model, const int32_t* table, int32_t start, int32_t stop, void* wire) {
  static_cast<Model*>(model)->read_kv(table, start, stop, wire);
}

void baton_write_kv(void* model, const int32_t* table, int32_t start, int32_t stop, const void* wire) {
  static_cast<Model*>(model)->write_kv(table, start, stop, wire);
}

// sizes[4]: bytes of weights, KV pool and workspace; bytes of weights that a decode step reads.
void baton_sizes(void* model, uint64_t* sizes) {
  static_cast<Model*>(model)->sizes(sizes, sizes + 1, sizes + 2, sizes + 3);
}

// Time-stamp cycles per phase since the last call.
void baton_take_phases(void* model, uint64_t* cycles) {
  Model* of = static_cast<Model*>(model);
  std::copy_n(of->phase_cycles, int(kPhases), cycles);
  std::fill_n(of->phase_cycles, int(kPhases), 0);
}

double baton_measure_peak(int32_t bfloat16, int32_t threads) {
  Threads pool(std::clamp(threads, 1, kThreadsMax));
#ifdef BATON_BFLOAT16
  if (bfloat16) return measure_peak<BFloat16>(pool);
#endif
  return bfloat16 ? 0.0 : measure_peak<Float32>(pool);
}

double baton_measure_tile_peak(int32_t threads) {
  Threads pool(std::clamp(threads, 1, kThreadsMax));
  return measure_tile_peak(pool);
}

double baton_measure_read(uint64_t bytes, int32_t threads, int32_t turns) {
  Threads pool(std::clamp(threads, 1, kThreadsMax));
  return measure_read(pool, bytes, turns);
}
}
