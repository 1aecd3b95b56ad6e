#include "framework/util/shell_word.h"

#include "tests/support/message_of.h"

namespace anymesh {
namespace {

TEST(ShellWords, UndoesShellWord) {
  const std::vector<std::string> words = {"--data-path", "0.7", "a b", "it's", "", "\\ \"$x", "'"};
  std::string line;
  for (const std::string& word : words) line += " " + shell_word(word);
  EXPECT_EQ(shell_words(line), words);
}

TEST(ShellWords, TakesAnyLine) {
  EXPECT_THAT(shell_words(""), IsEmpty());
  EXPECT_THAT(shell_words("  a  b "), ElementsAre("a", "b"));
  EXPECT_THAT(shell_words("'open quote"), ElementsAre("open quote"));
  EXPECT_THAT(shell_words("ends\\"), ElementsAre("ends"));
}

}  // namespace
}  // namespace anymesh
