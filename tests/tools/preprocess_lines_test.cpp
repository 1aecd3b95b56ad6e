// The lines of JSON that preprocess_data reads: as Python does, or refused or left out by number.
#include "tests/tools/preprocess_data.h"

namespace anymesh {
namespace {

TEST_F(PreprocessData, NamesTheFirstBadLine) {
  std::string lines;
  for (int i = 0; i < 200; ++i) lines += "{\"text\": \"" + std::string(30000, 'x') + "\"}\n";
  const std::string flags = input("a.jsonl", lines + "{\"text\": 1}\n" + lines + "{\"text\": \n");
  EXPECT_THAT(refusal(flags + "--workers 4"), HasSubstr("a.jsonl:201: has no string \"text\""));
  EXPECT_EQ(folder.files(), 1u);  // the input
  EXPECT_THAT(refusal(input("a.jsonl", "\n{\"text\": \"a\"")), HasSubstr("a.jsonl:2: "));
  EXPECT_THAT(refusal(input("a.jsonl", "{\"text\": \"\xff\"}")), HasSubstr("a.jsonl:1: "));
  EXPECT_THAT(refusal(input("a.jsonl", "[1]")),
              HasSubstr("begins a JSON array, expected one object a line; "));
  EXPECT_THAT(refusal(input("a.jsonl", "1")), HasSubstr("has no string \"text\" (--json-keys)"));
}

TEST_F(PreprocessData, LeavesOutOrMendsBadLinesWhenTold) {
  const std::string flags = input("a.jsonl",
                                  "{\"text\": \"one\"}\n{\"text\": \"x\\ud83dy\"}\n{\"text\": 1}\n"
                                  "{\"text\": \n{\"text\": \"\xff\\ud83d\\ude00\"}\n[1]\n"
                                  "{\"title\": \"t\"}\n{\"text\": \"two\\\\ud83d\"}\n");
  EXPECT_THAT(refusal(flags),
              HasSubstr("a.jsonl:2: the string \"text\" has half a surrogate pair"));
  EXPECT_THAT(misuse(flags + "--on-bad-line drop"), HasSubstr("expected error, skip or replace"));
  EXPECT_THAT(made(flags + "--workers 3 --on-bad-line skip"), ElementsAre("one", "two\\ud83d"));
  EXPECT_THAT(output, HasSubstrs("2 documents, ", "1 line skipped: no JSON; the ",
                                 "2 lines skipped: no UTF-8; the first: " + (folder / "a.jsonl") +
                                     ":2: the string",
                                 "3 lines skipped: no string; the first: " + (folder / "a.jsonl") +
                                     ":3: has no string \"text\""));
  EXPECT_THAT(made(flags + "--on-bad-line replace"),
              ElementsAre("one", "x\ufffdy", "\ufffd\U0001f600", "two\\ud83d"));
  EXPECT_THAT(output, HasSubstrs("2 lines kept, with U+FFFD for what is no UTF-8; the first: " +
                                     (folder / "a.jsonl") + ":2\n",
                                 "3 lines skipped: no string; the first: "));
  EXPECT_THAT(refusal(input("b.jsonl", "[]\n") + "--on-bad-line skip"),
              HasSubstrs("has no documents", "1 line skipped: no string"));
}

// A file without an end of line would fill the memory.
TEST_F(PreprocessData, RefusesALineOfAGigabyte) {
  const std::string flags = input("a.jsonl", "{\"text\": \"one\"}\n{\"text\": \"");
  std::filesystem::resize_file(folder / "a.jsonl", 1 << 30);  // of zeros, which take no room
  EXPECT_THAT(refusal(flags + "--workers 1"),
              HasSubstr("a.jsonl:2: is a line of more than 134217728 bytes"));
  EXPECT_THAT(made(flags + "--on-bad-line skip"), ElementsAre("one"));
  EXPECT_THAT(output, HasSubstr("1 line skipped: too long; the first: "));
}

// Python's json.loads takes these, and so does Megatron.
TEST_F(PreprocessData, ReadsLinesAsPythonDoes) {
  const char* lines[] = {
      R"({"text": "a", "score": NaN, "x": [Infinity, {"y": -Infinity}]})",
      R"({"text": "a", "n": 1e999, "m": -0.0E+5})",
      R"({"other": "\ud83d", "text": "a"})",  // half a surrogate pair
      R"({"te\u0078t": "\u0061"})",
      R"( { "text" : "b" , "text" : "a" } )",
      "\xef\xbb\xbf{\"text\": \"a\"}\r",
  };
  std::string all;
  for (const std::string line : lines) all += line + "\n";
  all += "{\"text\": \"a\", \"n\": " + std::string(400, '9') + "}\n";
  ASSERT_EQ(run(input("a.jsonl", all)), 0) << output;
  EXPECT_EQ(documents(folder / "out_text_document"), std::vector<std::string>(7, "a"));
}

TEST_F(PreprocessData, RefusesLinesThatPythonRefuses) {
  for (const char* line : {
           R"({"text": "a", "n": nan})",
           R"({"text": "a", "n": -NaN})",
           R"({"text": "a", "n": NaN1})",
           R"({"text": "a", "n": 01})",
           R"({"text": "a", "n": 1.})",
           R"({"text": "a", "n": .5})",
           R"({"text": "a", "n": +1})",
           R"({"text": "a", "n": 1e})",
           R"({"text": "a", NaN: 1})",
           R"({"text": "a", "n": })",
           R"({"text": "a",})",
           R"({"text": "a"} 1)",
           R"({"text": "a" "n": 1})",
           R"({"text": "a", "n": [1,]})",
           R"({"text": "a", "n": "\q"})",
           R"({"text": "a", "n": "\u12g4"})",
           R"({"text": "a", "n": [1})",
           "{\"text\": \"a\", \"n\": \"\t\"}",
           "{\"text\": \"a\", \"n\": \"\xff\"}",
           R"({'text': 'a'})",
       })
    EXPECT_THAT(refusal(input("a.jsonl", line)), HasSubstr("a.jsonl:1: column ")) << line;
  EXPECT_THAT(refusal(input("a.jsonl", R"({"text": "b", "text": NaN})")),
              HasSubstr("a.jsonl:1: has no string \"text\""));
  EXPECT_THAT(refusal(input("a.jsonl", R"({"text": "\ud83d"})")),
              HasSubstr("a.jsonl:1: the string \"text\" has half a surrogate pair"));
  EXPECT_THAT(refusal(input("a.jsonl", "{\"text\": " + std::string(100'000, '['))),
              HasSubstr("expected at most 1000 levels"));
}

}  // namespace
}  // namespace anymesh
