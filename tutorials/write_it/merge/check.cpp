#include <stdexcept>

#include "framework/format/layout/shard_layout.h"
#include "tutorials/write_it/checks.h"

namespace write_it {
namespace {

using namespace anymesh;

struct Cut {
  std::string words;
  Shape full;
  CutRule rule;
};

void check_inside(int64_t begin, int64_t count, int64_t size, const std::string& what) {
  if (count <= 0 || begin < 0 || begin + count > size)
    throw std::out_of_range("a run of " + std::to_string(count) + " at " + std::to_string(begin) +
                            " of " + what + ", which has " + std::to_string(size));
}

// Returns the full tensor, put together from all shards: "1:5" is element 5 of shard 1.
std::vector<std::string> merged(const Cut& cut, int tp) {
  std::vector<std::string> full(static_cast<size_t>(numel(cut.full)), "nothing");
  for (int rank = 0; rank < tp; ++rank) {
    const ShardLayout layout = ShardLayout::make(cut.full, cut.rule, tp, rank);
    const int64_t size = layout.shard_numel();
    layout.for_each_run(0, size, [&](int64_t to, int64_t from, int64_t count) {
      check_inside(to, count, numel(cut.full), "the full tensor");
      check_inside(from, count, size, "the shard");
      for (int64_t i = 0; i < count; ++i)
        full[static_cast<size_t>(to + i)] = std::to_string(rank) + ":" + std::to_string(from + i);
    });
  }
  return full;
}

// Returns the runs of a window of one shard.
std::vector<std::string> runs(const Cut& cut, int tp, int rank, int64_t begin, int64_t count) {
  std::vector<std::string> all;
  ShardLayout::make(cut.full, cut.rule, tp, rank)
      .for_each_run(begin, count, [&](int64_t full, int64_t shard, int64_t n) {
        if (all.size() == 1000) throw std::out_of_range("more than 1000 runs");
        all.push_back("{full " + std::to_string(full) + ", shard " + std::to_string(shard) +
                      ", n " + std::to_string(n) + "}");
      });
  return all;
}

}  // namespace

void merge() {
  const std::vector<Cut> cuts{
      {"[4, 2] cut along dim 0", {4, 2}, {}},
      {"[2, 4] cut along dim 1", {2, 4}, {.dim = 1}},
      {"[8, 1] of two parts, cut along dim 0", {8, 1}, {.parts = {4, 4}}},
      {"[3, 12] of parts 4 and 8, cut along dim 1", {3, 12}, {.dim = 1, .parts = {4, 8}}},
      {"[2, 4, 3] cut along dim 1", {2, 4, 3}, {.dim = 1}},
      {"[7, 3] padded to 8 rows, cut along dim 0", {7, 3}, {.padded = 8}},
      {"[2, 3], whole on every rank", {2, 3}, {.replicated = true}},
  };
  for (const Cut& cut : cuts) {
    for (const int tp : {2, 1, 4}) {
      const std::string on = cut.words + ", tp " + std::to_string(tp);
      answer(on, "full", [&] { return merged(cut, tp); });
      for (int rank = 0; rank < tp; ++rank) {
        const int64_t size = ShardLayout::make(cut.full, cut.rule, tp, rank).shard_numel();
        for (int64_t begin = 0; begin < size; ++begin)
          for (int64_t count = 0; begin + count <= size; ++count)
            answer(on + ", rank " + std::to_string(rank) + ", begin " + std::to_string(begin) +
                       ", count " + std::to_string(count),
                   "runs", [&] { return runs(cut, tp, rank, begin, count); });
      }
    }
  }
}

}  // namespace write_it
