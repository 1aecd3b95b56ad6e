#include "framework/format/layout.h"
#include "tutorials/write_it/checks.h"

namespace write_it {

void fragments() {
  using namespace anymesh;
  const std::vector<std::vector<int64_t>> groups{
      {66, 30, 51},       {1}, {3, 1, 2},      {8, 8}, {5, 0, 7, 64},
      {100, 1, 1, 1, 37}, {0}, {2, 2, 2, 2, 2}};
  for (const auto& numels : groups) {
    for (const int dp : {1, 2, 3, 4, 7, 16}) {
      for (const int64_t gap : {0, 3}) {
        const FlatGroup group(numels, dp, std::vector<int64_t>(gap ? numels.size() : 0, gap));
        for (int rank = 0; rank < dp; ++rank) {
          answer("parameters of " + list(numels) + (gap ? ", gaps of 3" : "") + ", dp " +
                     std::to_string(dp) + ", rank " + std::to_string(rank),
                 "fragments", [&] {
                   std::vector<std::string> all;
                   for (const Fragment& f : group.fragments(rank))
                     all.push_back("{param " + std::to_string(f.param) + ", param_start " +
                                   std::to_string(f.param_start) + ", partition_start " +
                                   std::to_string(f.partition_start) + ", numel " +
                                   std::to_string(f.numel) + "}");
                   return all;
                 });
        }
      }
    }
  }
}

}  // namespace write_it
