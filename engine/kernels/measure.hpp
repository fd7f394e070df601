// What this machine can do: the roofs that bench/kernels.py compares against.
#pragma once
#include <chrono>

#include "linear.hpp"

namespace baton {

inline double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

constexpr int kTurns = 20;  // the best of so many: other processes only ever make a turn slower

// FLOP/s of multiply_add on all threads with operands in registers (a multiply and an add count as two).
template <class Type>
double measure_peak(Threads& threads) {
  constexpr int sums = 24;
  constexpr int64_t steps = 100'000;
  float kept[kThreadsMax];
  const typename Type::Element one[2] = {};
  double best = 0.0;
  for (int turn = 0; turn < kTurns; ++turn) {
    const double start = seconds_now();
    threads.run_all([&](int thread) {
      __m512 sum[sums];
#pragma GCC unroll 24
      for (int i = 0; i < sums; ++i) {
        sum[i] = _mm512_setzero_ps();
        asm volatile("" : "+v"(sum[i]));  // or equal sums would be computed once
      }
      typename Type::Wide value = Type::broadcast(one);
      for (int64_t step = 0; step < steps; ++step) {
        asm volatile("" : "+v"(value));  // or the loop would be computed at compile time
#pragma GCC unroll 24
        for (int i = 0; i < sums; ++i) sum[i] = Type::multiply_add(sum[i], value, value);
      }
      __m512 all = sum[0];
#pragma GCC unroll 24
      for (int i = 1; i < sums; ++i) all = _mm512_add_ps(all, sum[i]);
      kept[thread] = _mm512_reduce_add_ps(all);
    });
    const double elapsed = seconds_now() - start + 1e-9 * (kept[0] != 0.0f);
    best = std::max(best, double(steps) * sums * kLanes * Type::pair * 2 * threads.count() / elapsed);
  }
  return best;
}

// FLOP/s of tile products on all threads; 0 without AMX.
inline double measure_tile_peak(Threads& threads) {
  double best = 0.0;
#ifdef BATON_AMX
  constexpr int64_t steps = 20'000;
  if (!tiles_allowed()) return 0.0;
  for (int turn = 0; turn < kTurns; ++turn) {
    const double start = seconds_now();
    threads.run_all([&](int) {
      open_tiles();
      clear_sums();
      for (int64_t step = 0; step < steps; ++step) {
        _tile_dpbf16ps(0, 4, 5);
        _tile_dpbf16ps(1, 4, 6);
        _tile_dpbf16ps(2, 4, 5);
        _tile_dpbf16ps(3, 4, 6);
      }
      close_tiles();
    });
    best = std::max(best, double(steps) * 4 * 16 * 16 * 32 * 2 * threads.count() / (seconds_now() - start));
  }
#endif
  return best;
}

// Bytes/s of reading `bytes` of memory once on all threads, best of some turns.
inline double measure_read(Threads& threads, size_t bytes, int turns) {
  Arena arena;
  arena.carve<uint8_t>(bytes);
  arena.reserve();
  uint8_t* data = arena.carve<uint8_t>(bytes);
  std::memset(data, 1, bytes);
  const int lines = int(bytes / (4 * kLine));
  double best = 0.0;
  int kept[kThreadsMax];
  for (int turn = 0; turn < turns; ++turn) {
    const double start = seconds_now();
    threads.run_all([&](int thread) {
      const Range mine = share_of(lines, thread, threads.count());
      __m512i sum[4] = {};
      for (int line = mine.first; line < mine.last; ++line) {
        const uint8_t* at = data + size_t(line) * 4 * kLine;
        for (int i = 0; i < 4; ++i) sum[i] = _mm512_xor_si512(sum[i], _mm512_load_si512(at + i * kLine));
        _mm_prefetch(at + 4096, _MM_HINT_T0);
        _mm_prefetch(at + 4096 + kLine, _MM_HINT_T0);
        _mm_prefetch(at + 4096 + 2 * kLine, _MM_HINT_T0);
        _mm_prefetch(at + 4096 + 3 * kLine, _MM_HINT_T0);
      }
      kept[thread] = _mm512_reduce_add_epi32(
          _mm512_xor_si512(_mm512_xor_si512(sum[0], sum[1]), _mm512_xor_si512(sum[2], sum[3])));
    });
    const double elapsed = seconds_now() - start + 1e-9 * (kept[0] == 1);
    best = std::max(best, double(bytes) / elapsed);
  }
  return best;
}

}  // namespace baton
