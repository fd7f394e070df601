// Laws of threads.hpp and phases.hpp, with more threads than cores and threads that come late: argument 1
// is the seed. Prints the law that broke, if one does, and ends.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>

#include "phases.hpp"

using namespace baton;

void law(bool holds, const char* words) {
  if (holds) return;
  std::printf("%s\n", words);
  std::exit(1);
}

struct Phase {
  int unit;
  std::vector<std::atomic<int>> taken;
  std::atomic<int> tails{0};
  Phase(int unit, int count) : unit(unit), taken(count) {}
  bool done() const {
    const auto once = [](const auto& times) { return times == 1; };
    return tails == 1 && std::all_of(taken.begin(), taken.end(), once);
  }
};

void one_step(Threads& threads, Phases& phases, std::mt19937& random) {
  std::vector<std::unique_ptr<Phase>> all;
  for (int i = 1 + random() % 20; i > 0; --i)
    all.push_back(std::make_unique<Phase>(1 + random() % 3, 1 + random() % (random() % 4 ? 40 : 3)));
  const int late = random() % threads.count(), late_from = random() % all.size();
  phases.begin(threads.count());
  threads.run_shared([&](int thread) {
    for (size_t p = 0; p < all.size(); ++p) {
      Phase& phase = *all[p];
      if (thread == late && thread > 0 && int(p) == late_from) usleep(100);
      int left = 5;
      phases.share(
          Phases::kFirst + int(p), thread, int(phase.taken.size()), phase.unit,
          [&](Range part) {
            law(part.first >= 0 && part.last <= int(phase.taken.size()), "a part is in range");
            law(!part.empty(), "a part holds something");
            law(p == 0 || all[p - 1]->done(), "a phase begins when the one before is done");
            for (int i = part.first; i < part.last; ++i) phase.taken[i] += 1;
          },
          [&] {
            for (const auto& times : phase.taken) law(times == 1, "the tail comes after every item");
            phase.tails += 1;
          },
          [&] { return --left > 0; });
    }
  });
  for (const auto& phase : all) law(phase->done(), "every item is taken once, and the tail runs once");
}

int main(int, char** arguments) {
  std::mt19937 random(std::atoi(arguments[1]));
  alarm(100);
  {
    Threads threads(1);
    Phases phases;
    for (int step = 0; step < 3000; ++step) {
      if (random() % 8 == 0) threads.resize(1 + random() % 12);
      one_step(threads, phases, random);
    }
  }
  {
    Threads threads(8);
    for (int i = 0; i < 5000; ++i) {
      std::atomic<int> ran[8] = {};
      threads.run_shared([](int) {});
      threads.run_all([&](int thread) { ran[thread] += 1; });
      for (const auto& times : ran) law(times == 1, "run_all runs every index once, whoever was late before");
    }
  }
  for (int i = 0; i < 3000; ++i) {
    Threads threads(8);
    threads.run_shared([](int) {});  // to stop while some still come for it ends them all the same
  }
}
