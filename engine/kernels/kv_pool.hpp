// Where each token's keys and values lie.
//
// [block][layer][kv_head][group], a group being 16 consecutive tokens of one head:
//   K [head_dim / pair][16 tokens][pair], then V [16 tokens / pair][head_dim][pair].
// One vector load has the same pair of dimensions of 16 keys, or the same 16 dimensions of a pair of
// values: either is an operand of a multiply_add, and of a tile product, as it lies. Attention walks
// groups, so a block may be any multiple of 16 tokens without changing a bit of the result. A block is
// contiguous over all layers: to zero or copy it is one call.
#pragma once
#include "memory.hpp"
#include "numeric.hpp"

namespace baton {

constexpr int kGroup = 16;
constexpr int kHeadDimMax = 256;

template <class Type>
struct KvPool {
  using Element = typename Type::Element;
  Element* data = nullptr;
  int layers = 0, kv_heads = 0, head_dim = 0, block_size = 0, blocks = 0;

  size_t group_elements() const { return size_t(2) * kGroup * head_dim; }
  size_t head_elements() const { return group_elements() * (block_size / kGroup); }
  size_t layer_elements() const { return head_elements() * kv_heads; }
  size_t block_elements() const { return layer_elements() * layers; }
  size_t elements() const { return block_elements() * blocks; }

  // The group that holds token `position` of the sequence whose blocks are `table`.
  Element* group(const int32_t* table, int position, int layer, int head) const {
    const int block = table[position / block_size];
    return data + block * block_elements() + layer * layer_elements() + head * head_elements() +
           position % block_size / kGroup * group_elements();
  }

  static size_t key_at(int slot, int dim) {
    return (size_t(dim / Type::pair) * kGroup + slot) * Type::pair + dim % Type::pair;
  }
  size_t value_at(int slot, int dim) const {
    return size_t(kGroup) * head_dim + (size_t(slot / Type::pair) * head_dim + dim) * Type::pair;
  }

  void zero(int block) const {
    std::memset(data + block * block_elements(), 0, block_elements() * sizeof(Element));
  }
  void copy(int source, int destination) const {
    std::memcpy(data + destination * block_elements(), data + source * block_elements(),
                block_elements() * sizeof(Element));
  }

  // Stores one token's key and value, float32 [head_dim] each, rounded to the pool's type.
  void put(Element* group, int slot, const float* key, const float* value) const {
    alignas(kLine) Element rounded[kHeadDimMax], rounded_value[kLanes];
    for (int dim = 0; dim < head_dim; dim += kLanes) {
      Type::narrow(rounded + dim, 0xFFFF, _mm512_loadu_ps(key + dim));
      Type::narrow(rounded_value, 0xFFFF, _mm512_loadu_ps(value + dim));
      Type::place(group + value_at(slot, dim), slot % Type::pair, rounded_value);
    }
    for (int dim = 0; dim < head_dim; dim += Type::pair) {
      std::memcpy(group + key_at(slot, dim), rounded + dim, sizeof(Element) * Type::pair);
    }
  }

  // Tokens start .. stop between the pool and the wire [layer, K/V, token, kv_head, head_dim].
  template <bool kToWire>
  void exchange(const int32_t* table, int start, int stop, Element* wire) const {
    const size_t row = size_t(kv_heads) * head_dim;
    const size_t plane = row * (stop - start);
    for (int layer = 0; layer < layers; ++layer) {
      for (int token = start; token < stop; ++token) {
        for (int head = 0; head < kv_heads; ++head) {
          Element* key = wire + size_t(2 * layer) * plane + (token - start) * row + size_t(head) * head_dim;
          Element* at = group(table, token, layer, head);
          const int slot = token % kGroup;
          for (int dim = 0; dim < head_dim; dim += Type::pair) {
            Element* inside = at + key_at(slot, dim);
            std::memcpy(kToWire ? key + dim : inside, kToWire ? inside : key + dim,
                        sizeof(Element) * Type::pair);
          }
          for (int dim = 0; dim < head_dim; dim += kLanes) {
            Element* value = at + value_at(slot, dim);
            Element* outside = key + plane + dim;
            kToWire ? Type::take(value, slot % Type::pair, outside)
                    : Type::place(value, slot % Type::pair, outside);
          }
        }
      }
    }
  }
};

}  // namespace baton
