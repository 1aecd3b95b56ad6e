#include <c10/util/StringUtil.h>

#include <cstdio>

#include "framework/comm/job.h"

namespace anymesh {

void print_warning(const std::string& text) { std::fprintf(stderr, "WARNING: %s\n", text.c_str()); }

std::string Patience::warning(int rank, const char* verb, const std::string& group, bool any,
                              const std::set<int>& late, bool last) const {
  std::string ranks;
  for (const int r : late) ranks += c10::str(ranks.empty() ? "" : ", ", r);
  const auto seconds = std::chrono::ceil<std::chrono::seconds>(last ? kTimes * time : time).count();
  return c10::str(
      "[rank ", rank, "] has waited ", seconds, " s in ", verb, " of ", group, " for ",
      any ? "one of " : "", late.size() == 1 ? "rank " : "ranks ", ranks,
      last ? ", and ends the job (--distributed-timeout-minutes)"
           : ", and waits on (--distributed-timeout-minutes)",
      ". A rank that says nothing like this is stopped or busy, or its machine is gone");
}

}  // namespace anymesh
