// A few threads that compute one step together, in phases divided by barriers.
//
// A waiter spins for some tens of microseconds (phases are short), then yields, then sleeps on a
// futex: when another busy process shares the cores, a spinning waiter would keep the very thread it
// waits for from running.
#pragma once
#include <immintrin.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace baton {

constexpr int kThreadsMax = 64;

struct Range {
  int first, last;
};

// The share of `count` items that one of `shares` threads takes; sizes differ by at most one.
inline Range share_of(int count, int index, int shares) {
  return {int(int64_t(count) * index / shares), int(int64_t(count) * (index + 1) / shares)};
}

// The next part of 0 .. count - 1 for a thread that is free: large parts first, then ever smaller ones
// (guided self-scheduling, Polychronopoulos & Kuck 1987), so that a core that also serves another
// process does less instead of making the others wait. Parts are multiples of `unit` while they can be.
inline Range draw(std::atomic<int>& next, int count, int unit, int threads) {
  int first = next.load(std::memory_order_relaxed);
  for (;;) {
    if (first >= count) return {count, count};
    int size = threads == 1 ? count - first : std::max(1, (count - first) / (2 * threads));
    if (size > unit) size -= size % unit;
    if (next.compare_exchange_weak(first, first + size, std::memory_order_relaxed))
      return {first, first + size};
  }
}

class Threads {
 public:
  explicit Threads(int count) { start(count); }
  ~Threads() { stop(); }

  int count() const { return count_; }

  void resize(int count) {
    if (count == count_) return;
    stop();
    start(count);
  }

  // Runs job(0) on the caller and job(1) .. job(count - 1) on the others; returns when all are done.
  void run(const std::function<void(int)>& job) {
    job_ = &job;
    round_.fetch_add(1, std::memory_order_release);
    round_.notify_all();
    job(0);
    barrier();
  }

  // Called by every thread inside a job.
  void barrier() {
    if (count_ == 1) return;
    const int phase = phase_.load(std::memory_order_acquire);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) == count_ - 1) {
      arrived_.store(0, std::memory_order_relaxed);
      phase_.store(phase + 1, std::memory_order_release);
      phase_.notify_all();
    } else {
      wait_while(phase_, phase);
    }
  }

 private:
  static void wait_while(const std::atomic<int>& value, int old) {
    for (int spin = 0; spin < 600; ++spin) {
      if (value.load(std::memory_order_acquire) != old) return;
      _mm_pause();
    }
    for (int turn = 0; turn < 100; ++turn) {
      if (value.load(std::memory_order_acquire) != old) return;
      sched_yield();
    }
    while (value.load(std::memory_order_acquire) == old) value.wait(old, std::memory_order_acquire);
  }

  void start(int count) {
    count_ = count;
    stopping_ = false;
    const int round = round_.load();
    for (int index = 1; index < count; ++index) {
      others_.emplace_back([this, index, round] { follow(index, round); });
    }
  }

  void stop() {
    stopping_ = true;
    round_.fetch_add(1);
    round_.notify_all();
    for (std::thread& other : others_) other.join();
    others_.clear();
  }

  void follow(int index, int round) {
    for (;; ++round) {
      wait_while(round_, round);
      if (stopping_) return;
      (*job_)(index);
      barrier();
    }
  }

  int count_ = 1;
  std::atomic<bool> stopping_{false};
  const std::function<void(int)>* job_ = nullptr;
  std::vector<std::thread> others_;
  alignas(64) std::atomic<int> round_{0};
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<int> phase_{0};
};

}  // namespace baton
