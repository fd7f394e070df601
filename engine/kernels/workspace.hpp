// What a step computes in: buffers carved once, of the size of the largest step.
#pragma once
#include "attention.hpp"
#include "greedy.hpp"
#include "interface.hpp"
#include "linear.hpp"

namespace baton {

// Rows are tokens of the step; `sampled` has the rows that sample. Strides are in elements. What a linear
// reads ends in kTileRowsPadding spare rows (tiles.hpp).
template <class Type>
struct Workspace {
  using Element = typename Type::Element;

  // `expanded_elements`: of one thread's room for a panel of grouped weights.
  Workspace(const Shape& shape, size_t expanded_elements)
      : normed_stride(row_stride<Type>(shape.hidden)),
        query_stride(row_stride<Type>(size_t(shape.heads) * shape.head_dim)),
        gated_stride(row_stride<Type>(shape.intermediate)),
        qkv_stride(round_up(size_t(shape.heads + 2 * shape.kv_heads) * shape.head_dim, kPanel)),
        expanded_stride(expanded_elements) {
    carve(shape), arena.reserve(), carve(shape);
  }

  size_t normed_stride, query_stride, gated_stride, qkv_stride, expanded_stride;
  Arena arena;
  float *residual = nullptr, *sampled = nullptr;        // [rows][hidden]
  Element* normed = nullptr;                            // [rows][normed_stride]
  float* qkv = nullptr;                                 // [rows][qkv_stride]: q, k and v of all heads
  Element *queries = nullptr, *attended = nullptr;      // [rows][query_stride]
  Element* expanded = nullptr;                          // [threads][expanded_stride]
  Element* gated = nullptr;                             // [rows][gated_stride]
  float *cosines = nullptr, *sines = nullptr;           // [rows][head_dim / 2]
  int32_t* row_of = nullptr;                            // [tokens]: which row of the batch
  Greedy greedy;
  float *partials = nullptr, *last_partials = nullptr;  // of Attention

 private:
  void carve(const Shape& shape) {
    const size_t tokens = shape.tokens_max;
    const size_t samples = shape.samples_max;
    const size_t padded = std::max(tokens, samples) + kTileRowsPadding;
    residual = arena.carve<float>(tokens * shape.hidden);
    sampled = arena.carve<float>(samples * shape.hidden);
    qkv = arena.carve<float>(tokens * qkv_stride);
    normed = arena.carve<Element>(padded * normed_stride);
    queries = arena.carve<Element>(tokens * query_stride);
    attended = arena.carve<Element>(padded * query_stride);
    gated = arena.carve<Element>(padded * gated_stride);
    expanded = arena.carve<Element>(kThreadsMax * expanded_stride);
    cosines = arena.carve<float>(tokens * shape.head_dim / 2);
    sines = arena.carve<float>(tokens * shape.head_dim / 2);
    row_of = arena.carve<int32_t>(tokens);
    greedy.carve(arena, shape.samples_max, kThreadsMax);
    partials = arena.carve<float>(Attention<Type>::partial_floats(shape.head_dim));
    last_partials = arena.carve<float>(Attention<Type>::partial_floats(shape.head_dim));
  }
};

}  // namespace baton
