// write_it NAME: prints the answers of one check (checks.h).
#include <cstring>
#include <utility>

#include "tutorials/write_it/checks.h"

int main(int argc, char** argv) {
  using namespace write_it;
  constexpr std::pair<const char*, void (*)()> checks[] = {
      {"one_f_one_b", one_f_one_b},
      {"fragments", fragments},
      {"coord_of", coord_of},
      {"philox", philox},
      {"all_reduce", all_reduce},
      {"column_backward", column_backward},
      {"zero1", zero1},
      {"merge", merge},
      {"causal_mask", causal_mask},
      {"loss_scaler", loss_scaler},
  };
  for (const auto& [name, check] : checks) {
    if (argc != 2 || std::strcmp(argv[1], name) != 0) continue;
    check();
    return 0;
  }
  std::fprintf(stderr, "usage: write_it NAME\n");
  return 2;
}
