#include "framework/data/utf8_stream.h"

#include <gtest/gtest.h>

#include "framework/util/utf8.h"

namespace anymesh {
namespace {

const std::string kBad = "\xef\xbf\xbd";

TEST(Utf8Stream, LetsCharactersOutOnceTheyAreWhole) {
  const std::string text = "a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\xf4\x8f\xbf\xbf\xed\x9f\xbf!";
  for (size_t piece = 1; piece <= text.size(); ++piece) {
    Utf8Stream stream;
    std::string all;
    for (size_t at = 0; at < text.size(); at += piece) {
      const std::string out = stream.take(text.substr(at, piece));
      for (std::string_view rest = out; !rest.empty();) {
        const CodePoint c = decode_utf8(rest);
        EXPECT_TRUE(c.valid) << "a part of a character after byte " << at;
        rest.remove_prefix(c.bytes);
      }
      all += out;
    }
    EXPECT_EQ(all, text);
    EXPECT_EQ(stream.finish(), "");
  }
}

TEST(Utf8Stream, WaitsForNothingThatCannotCome) {
  const std::pair<std::string, std::string> cases[] = {
      {"\x80", kBad},         // a continuation alone
      {"\xc3(", kBad + "("},  // interrupted
      {"\xe2\x82(", kBad + kBad + "("},
      {"\xc0\x80", kBad + kBad},  // overlong
      {"\xe0\x80", kBad + kBad},
      {"\xed\xa0", kBad + kBad},  // a surrogate
      {"\xf4\x90", kBad + kBad},  // beyond U+10FFFF
      {"\xff\xfe", kBad + kBad}};
  for (const auto& [bytes, expected] : cases) EXPECT_EQ(Utf8Stream().take(bytes), expected);
}

TEST(Utf8Stream, EndsInTheMiddle) {
  for (const std::string begun : {"\xc3", "\xe2\x82", "\xf0\x9f\x98"}) {
    Utf8Stream stream;
    EXPECT_EQ(stream.take("x" + begun), "x");
    std::string expected;
    for (size_t i = 0; i < begun.size(); ++i) expected += kBad;
    EXPECT_EQ(stream.finish(), expected);
    EXPECT_EQ(stream.finish(), "");
  }
}

}  // namespace
}  // namespace anymesh
