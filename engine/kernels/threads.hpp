// A few threads that compute one step together (how they divide it: phases.hpp).
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
  int size() const { return last - first; }
  bool empty() const { return first >= last; }
};

// The share of `count` items that one of `shares` threads takes; sizes differ by at most one.
inline Range share_of(int count, int index, int shares) {
  return {int(int64_t(count) * index / shares), int(int64_t(count) * (index + 1) / shares)};
}

// Returns once `value` is no longer `old`.
template <class Value>
void wait_while(const std::atomic<Value>& value, Value old) {
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

  // Runs job(0) here and job(1) .. job(count - 1) on the others; returns when all are done.
  void run_all(const std::function<void(int)>& job) { run(job, true); }

  // The same for a job that only shares Phases: a thread that wakes too late for it is not waited for.
  void run_shared(const std::function<void(int)>& job) { run(job, false); }

 private:
  static constexpr uint64_t kClosed = uint64_t(1) << 31;

  void run(const std::function<void(int)>& job, bool everybody) {
    const uint32_t round = round_.load(std::memory_order_relaxed) + 1;
    job_ = &job;
    left_.store(0, std::memory_order_relaxed);
    gate_.store(uint64_t(round) << 32, std::memory_order_release);
    round_.store(round, std::memory_order_release);
    round_.notify_all();
    job(0);
    for (int left; everybody && (left = left_.load(std::memory_order_acquire)) < count_ - 1;)
      wait_while(left_, left);
    uint64_t gate = gate_.fetch_add(kClosed, std::memory_order_acq_rel) + kClosed;
    for (; gate & (kClosed - 1); gate = gate_.load(std::memory_order_acquire)) wait_while(gate_, gate);
  }

  // Enters the round that is open, unless that is `round`, and says which: a thread late for one may find
  // the next open before it is published.
  bool enter(uint32_t& round) {
    uint64_t gate = gate_.load(std::memory_order_acquire);
    while (!(gate & kClosed) && uint32_t(gate >> 32) != round) {
      if (!gate_.compare_exchange_weak(gate, gate + 1, std::memory_order_acq_rel)) continue;
      round = uint32_t(gate >> 32);
      return true;
    }
    return false;
  }

  void leave() {
    left_.fetch_add(1, std::memory_order_release);
    left_.notify_all();
    gate_.fetch_sub(1, std::memory_order_release);
    gate_.notify_all();
  }

  void start(int count) {
    count_ = count;
    stopping_ = false;
    const uint32_t round = round_.load();
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

  void follow(int index, uint32_t round) {
    for (;;) {
      wait_while(round_, round);
      // Looked at before stopping_: the last round is stop's.
      const uint32_t begun = round_.load(std::memory_order_acquire);
      if (stopping_) return;
      if (enter(round)) {
        (*job_)(index);
        leave();
      } else if (int32_t(begun - round) > 0) {
        round = begun;  // too late for it
      }
    }
  }

  int count_ = 1;
  std::atomic<bool> stopping_{false};
  const std::function<void(int)>* job_ = nullptr;
  std::vector<std::thread> others_;
  alignas(64) std::atomic<uint32_t> round_{0};
  alignas(64) std::atomic<uint64_t> gate_{kClosed};  // [round:32][closed:1][threads inside:31]
  alignas(64) std::atomic<int> left_{0};
};

}  // namespace baton
