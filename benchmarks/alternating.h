#pragma once

#include <algorithm>
#include <functional>
#include <vector>

#include "framework/util/stopwatch.h"

namespace anymesh {

// Something to be timed beside others.
struct Work {
  const char* name;
  double bytes;  // for the table
  std::function<void()> run;
  double seconds = 0;  // the median
};

// Runs the works in turn, and sets their medians of 15 rounds behind a first one.
inline void time_alternating(std::vector<Work>& works) {
  constexpr size_t kRounds = 15;
  std::vector<std::vector<double>> seconds(works.size());
  for (size_t round = 0; round <= kRounds; ++round) {
    for (size_t i = 0; i < works.size(); ++i) {
      double taken = 0;
      {
        const Stopwatch timing(taken);
        works[i].run();
      }
      if (round > 0) seconds[i].push_back(taken);
    }
  }
  for (size_t i = 0; i < works.size(); ++i) {
    std::ranges::sort(seconds[i]);
    works[i].seconds = seconds[i][kRounds / 2];
  }
}

}  // namespace anymesh
