// A decoder's weights in one arena: linears packed, the rest as it is.
#pragma once
#include <vector>

#include "interface.hpp"
#include "linear.hpp"

namespace baton {

template <class Type>
class Weights {
 public:
  using Element = typename Type::Element;

  struct Layer {
    Packed<Type> qkv, output, gate_up, down;
    float *input_norm, *post_norm, *query_norm, *key_norm, *qkv_bias;
  };

  explicit Weights(const Shape& shape) : layers(shape.layers), shape_(shape) {
    carve();
    arena_.reserve();
    carve();
  }

  void load(Slot slot, int layer, const void* from, Threads& threads) {
    Layer& to = layers[layer];
    switch (slot) {
      case kQkv:
        return load_packed(to.qkv, from, false, threads);
      case kOutput:
        return load_packed(to.output, from, false, threads);
      case kGateUp:
        return load_packed(to.gate_up, from, true, threads);
      case kDown:
        return load_packed(to.down, from, false, threads);
      case kHead:
        return load_packed(head, from, false, threads);
      case kEmbedding:
        std::memcpy(embedding_, from, sizeof(Element) * shape_.vocab * shape_.hidden);
        return;
      case kInputNorm:
        return load_floats(to.input_norm, from, shape_.hidden);
      case kPostNorm:
        return load_floats(to.post_norm, from, shape_.hidden);
      case kQueryNorm:
        return load_floats(to.query_norm, from, shape_.head_dim);
      case kKeyNorm:
        return load_floats(to.key_norm, from, shape_.head_dim);
      case kQkvBias:
        return load_floats(to.qkv_bias, from, to.qkv.rows);
      case kFinalNorm:
        return load_floats(final_norm, from, shape_.hidden);
      case kInverseFrequency:
        return load_floats(inverse_frequency, from, shape_.head_dim / 2);
    }
  }

  // The embedding of one token, float32 [hidden]; a tied one is read out of the packed head.
  void embed(int token, float* to) const {
    if (shape_.tied) return unpack_row<Type>(head, token, to);
    const Element* from = embedding_ + size_t(token) * shape_.hidden;
    for (int i = 0; i < shape_.hidden; i += kLanes) _mm512_storeu_ps(to + i, Type::widen(from + i));
  }

  size_t bytes() const { return arena_.used(); }

  // The room that multiply() needs to expand any panel of these.
  size_t expanded_elements() const {
    const Layer& layer = layers[0];
    if (!Type::grouped) return 0;
    return std::max({layer.qkv.panel_elements(), layer.output.panel_elements(), layer.down.panel_elements()});
  }

  // What a decode step must read: every linear once.
  size_t bytes_read_per_step() const {
    const Layer& layer = layers[0];
    const size_t linears =
        layer.qkv.stored() + layer.output.stored() + layer.gate_up.stored() + layer.down.stored();
    return (linears * layers.size() + head.stored()) * sizeof(typename Type::Stored);
  }

  std::vector<Layer> layers;
  Packed<Type> head;
  float *final_norm = nullptr, *inverse_frequency = nullptr;

 private:
  void carve_packed(Packed<Type>& to, int rows, int columns) {
    to.rows = rows, to.columns = columns;
    to.data = arena_.carve<typename Type::Stored>(to.stored());
  }

  void carve() {
    const int query_width = shape_.heads * shape_.head_dim;
    const int key_width = shape_.kv_heads * shape_.head_dim;
    for (Layer& layer : layers) {
      carve_packed(layer.qkv, query_width + 2 * key_width, shape_.hidden);
      carve_packed(layer.output, shape_.hidden, query_width);
      carve_packed(layer.gate_up, 2 * shape_.intermediate, shape_.hidden);
      carve_packed(layer.down, shape_.hidden, shape_.intermediate);
      layer.input_norm = arena_.carve<float>(shape_.hidden);
      layer.post_norm = arena_.carve<float>(shape_.hidden);
      layer.query_norm = arena_.carve<float>(shape_.head_dim);
      layer.key_norm = arena_.carve<float>(shape_.head_dim);
      layer.qkv_bias = arena_.carve<float>(layer.qkv.panels() * kPanel);
    }
    carve_packed(head, shape_.vocab, shape_.hidden);
    if (!shape_.tied) embedding_ = arena_.carve<Element>(size_t(shape_.vocab) * shape_.hidden);
    final_norm = arena_.carve<float>(shape_.hidden);
    inverse_frequency = arena_.carve<float>(shape_.head_dim / 2);
  }

  static void load_packed(const Packed<Type>& to, const void* from, bool halves, Threads& threads) {
    threads.run_all([&](int thread) {
      pack<Type>(to, static_cast<const Element*>(from), halves,
                 share_of(to.panels(), thread, threads.count()));
    });
  }

  static void load_floats(float* to, const void* from, int count) {
    std::memcpy(to, from, sizeof(float) * count);
  }

  Shape shape_;
  Arena arena_;
  Element* embedding_ = nullptr;
};

}  // namespace baton
