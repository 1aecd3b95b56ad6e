#include "framework/util/printable.h"

#include <gtest/gtest.h>

namespace anymesh {
namespace {

TEST(Printable, LeavesTextAlone) {
  for (const std::string text :
       {"", "2.mlp.weight", "\\d+.weight", "caf\xc3\xa9 \xe4\xb8\xad \xf0\x9f\x99\x82"})
    EXPECT_EQ(printable(text), text);
}

TEST(Printable, SpellsOutWhatSteersATerminal) {
  EXPECT_EQ(printable("a\x1b[2J\x07\x7f\r\t"), "a\\x1b[2J\\x07\\x7f\\x0d\\x09");
  EXPECT_EQ(printable(std::string("a\0b", 3)), "a\\x00b");
  EXPECT_EQ(printable("a\nb"), "a\\nb");
  EXPECT_EQ(printable_message("a\nb\x1b"), "a\nb\\x1b");
  EXPECT_EQ(printable("\xc2\x9b"
                      "2J"),
            "\\xc2\\x9b"
            "2J");                                          // CSI in one character
  EXPECT_EQ(printable("\xe2\x80\xae"), "\\xe2\\x80\\xae");  // right to left
  EXPECT_EQ(printable("\xe2\x80\xa8"), "\\xe2\\x80\\xa8");  // a line's end
}

TEST(Printable, SpellsOutWhatIsNoUtf8) {
  EXPECT_EQ(printable("\xff\xc3"), "\\xff\\xc3");
  EXPECT_EQ(printable("\xc0\xaf"), "\\xc0\\xaf");                    // overlong
  EXPECT_EQ(printable("\xed\xa0\x80"), "\\xed\\xa0\\x80");           // half of a pair
  EXPECT_EQ(printable("\xf4\x90\x80\x80"), "\\xf4\\x90\\x80\\x80");  // beyond the last
}

TEST(Printable, CutsTheMiddle) {
  EXPECT_EQ(printable(std::string(200, 'a')), std::string(200, 'a'));
  EXPECT_EQ(printable(std::string(5'000'000, 'a')),
            std::string(150, 'a') + "...(5000000 bytes)..." + std::string(50, 'a'));
  std::string accents;
  for (int i = 0; i < 1000; ++i) accents += "\xe2\x82\xac";
  for (size_t most = 8; most < 40; ++most)
    EXPECT_EQ(printable(accents, most).find('\\'), std::string::npos) << most;
  EXPECT_LT(printable_message(std::string(5'000'000, '\x1b')).size(), 33'000u);
}

TEST(Printable, TwiceIsAsGoodAsOnce) {
  std::string all;
  for (int c = 0; c < 256; ++c) all += static_cast<char>(c);
  EXPECT_EQ(printable(printable(all, 2000), 2000), printable(all, 2000));
}

}  // namespace
}  // namespace anymesh
