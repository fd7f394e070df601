// How the threads of a step divide its phases: the next begins when all work of the last is done, not when
// all threads have come, so that one which another process displaced is soon made up for.
//
// Each thread has a share of a phase's items, neighbours in memory, and takes it from the front, a unit at
// a time; one that is through with its own takes half of what another has left, from the back (affinity
// scheduling, Markatos & LeBlanc 1992). So a thread reads one run of memory per phase, and knows before the
// phase begins where it will start.
#pragma once
#include <cassert>

#include "threads.hpp"

namespace baton {

class Phases {
 public:
  // Before a step, while no thread is in it. Its phases count from kFirst.
  void begin(int threads) {
    threads_ = threads;
    current_.store(kFirst, std::memory_order_relaxed);
    for (Left& left : left_) left.value.store(0, std::memory_order_relaxed);
  }

  static constexpr int kFirst = 1;

  // Items 0 .. count - 1, 1 to 2^20 - 1 of them, go to body(Range) on whoever is free, then the last to
  // finish runs tail(), then everybody returns. A thread that is not running while the others work holds
  // nobody up unless it holds a part. While it waits for others a thread calls ahead() until that has
  // nothing more to do. Returns the time-stamp cycles spent waiting.
  template <class Body, class Tail, class Ahead>
  uint64_t share(int phase, int thread, int count, int unit, const Body& body, const Tail& tail,
                 const Ahead& ahead) {
    assert(count > 0 && count < 1 << kBits);
    int own = 0;
    for (Range mine; !(mine = take_front(phase, thread, count, unit)).empty(); own += mine.size()) body(mine);
    if (finish(phase, own, count, tail)) return 0;
    for (int other = 1; other < threads_; ++other) {
      const int from = (thread + other) % threads_;
      for (Range theirs; !(theirs = take_back(phase, from, count, unit)).empty();) {
        body(theirs);
        if (finish(phase, theirs.size(), count, tail)) return 0;
      }
    }
    const uint64_t since = __rdtsc();
    while (current_.load(std::memory_order_acquire) == phase && ahead()) {
    }
    wait_while(current_, phase);
    return __rdtsc() - since;
  }

 private:
  // What is left of a thread's share, by phase: [phase:24][first:20][last:20]. Whoever takes the first part
  // of a phase's share puts it in place of an earlier phase's.
  struct alignas(64) Left {
    std::atomic<uint64_t> value{0};
  };
  static constexpr int kBits = 20;

  Range rest_of(uint64_t left, int phase, int owner, int count) const {
    const int then = int(left >> 2 * kBits), mask = (1 << kBits) - 1;
    if (then < phase) return share_of(count, owner, threads_);
    if (then > phase) return {0, 0};
    return {int(left >> kBits) & mask, int(left) & mask};
  }

  static uint64_t left_of(int phase, Range rest) {
    return uint64_t(phase) << 2 * kBits | uint64_t(rest.first) << kBits | uint64_t(rest.last);
  }

  Range take_front(int phase, int owner, int count, int unit) {
    return take(phase, owner, count, [=](Range rest) {
      return Range{rest.first, rest.first + std::min(unit, rest.size())};
    });
  }

  Range take_back(int phase, int owner, int count, int unit) {
    return take(phase, owner, count, [=](Range rest) {
      const int half = ((rest.size() + 1) / 2 + unit - 1) / unit * unit;
      return Range{rest.last - std::min(half, rest.size()), rest.last};
    });
  }

  // Takes chosen(rest), which begins or ends with the rest; empty where nothing is left.
  template <class Chosen>
  Range take(int phase, int owner, int count, const Chosen& chosen) {
    std::atomic<uint64_t>& left = left_[owner].value;
    uint64_t seen = left.load(std::memory_order_relaxed);
    for (;;) {
      const Range rest = rest_of(seen, phase, owner, count);
      if (rest.empty()) return {0, 0};
      const Range mine = chosen(rest);
      const bool front = mine.first == rest.first;
      const Range after{front ? mine.last : rest.first, front ? rest.last : mine.first};
      if (left.compare_exchange_weak(seen, left_of(phase, after), std::memory_order_relaxed)) return mine;
    }
  }

  // Counts `size` more items as done. Whoever brings them to `count` ends the phase; true for it alone.
  template <class Tail>
  bool finish(int phase, int size, int count, const Tail& tail) {
    if (size == 0 || done_.fetch_add(size, std::memory_order_acq_rel) + size < count) return false;
    tail();
    done_.store(0, std::memory_order_relaxed);
    current_.store(phase + 1, std::memory_order_release);
    if (threads_ > 1) current_.notify_all();
    return true;
  }

  int threads_ = 1;
  alignas(64) std::atomic<int> current_{kFirst};
  alignas(64) std::atomic<int> done_{0};
  Left left_[kThreadsMax];
};

}  // namespace baton
