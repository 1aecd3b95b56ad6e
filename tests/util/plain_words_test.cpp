#include "framework/util/plain_words.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/support/message_of.h"

namespace anymesh {
namespace {

// Returns the text of the error that `work` throws.
template <class Work>
std::string text_of(Work work) {
  try {
    work();
  } catch (const std::exception& error) {
    return printable_message(error);
  }
  return "";
}

TEST(PlainWords, LibrariesMarksAreLeftOut) {
  EXPECT_THAT(text_of([] { return nlohmann::json::parse("{").size(); }),
              AllOf(Not(HasSubstr("json.exception")), HasSubstr("parse error at line 1")));
  EXPECT_THAT(text_of([] { return std::filesystem::file_size("no/such"); }),
              "cannot get file size: No such file or directory [no/such]");
  EXPECT_THAT(text_of([] { std::filesystem::rename("no/such", "no/other"); }),
              "cannot rename: No such file or directory [no/such] [no/other]");
}

TEST(PlainWords, AShortageSaysHowMuchIsWantedAndFree) {
  EXPECT_THAT(
      plain_words("[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't "
                  "allocate memory: you tried to allocate 80000000000 bytes. Error code 12"),
      AllOf(HasSubstr("not enough memory for 80.00 GB: "), HasSubstr("B are free"),
            Not(HasSubstr("enforce"))));
  EXPECT_THAT(printable_message(std::bad_alloc()), HasSubstr("B are free"));
  rlimit limit{}, before{};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  limit = {.rlim_cur = rlim_t{1} << 42, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_AS, &limit), 0);
  EXPECT_THAT(printable_message(std::bad_alloc()), HasSubstr("`ulimit -v` allows this process"));
  ASSERT_EQ(setrlimit(RLIMIT_AS, &before), 0);
}

}  // namespace
}  // namespace anymesh
