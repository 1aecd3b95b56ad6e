// Inputs of preprocess_data: files, patterns and pipes, also compressed. However the text comes,
// the output has the same bytes.
#include <sys/stat.h>

#include "tests/data/compressed.h"
#include "tests/tools/preprocess_data.h"

namespace anymesh {
namespace {

class PreprocessInputs : public PreprocessData {
 protected:
  void SetUp() override {
    size_t end = 0;
    for (int line = 0; line < 40; ++line) end = text.find('\n', end) + 1;
    parts = {text.substr(0, end), text.substr(end)};
    write_file(folder / "all.jsonl", text);
    expected = tokens("--input " + (folder / "all.jsonl"));
    ASSERT_GT(expected.size(), 600'000u);
  }

  // Returns the bytes of both output files.
  std::string tokens(const std::string& input, const std::string& before = "") {
    const std::string prefix = folder / "o";
    const std::string command = before + PREPROCESS_DATA + " " + input +
                                " --tokenizer-type ByteLevelTokenizer --append-eod --workers 3" +
                                " --output-prefix " + prefix + " >" + (folder / "log") + " 2>&1";
    const std::string shell = "bash -c \"" + command + "\"";
    EXPECT_EQ(std::system(shell.c_str()), 0) << command << "\n" << read_file(folder / "log");
    std::string bytes;
    for (const char* suffix : {"_text_document.bin", "_text_document.idx"}) {
      bytes += read_file(prefix + suffix);
      std::filesystem::remove(prefix + suffix);
    }
    return bytes;
  }

  const std::string text = read_file(data_fixture("text.jsonl"));
  std::vector<std::string> parts;
  std::string expected;
};

TEST_F(PreprocessInputs, DoNotDependOnCompression) {
  const std::string half = text.substr(0, text.size() / 2), rest = text.substr(half.size());
  const std::pair<std::string, std::string> files[] = {
      {"a.jsonl.gz", gzipped(text)},
      {"b.jsonl.zst", zstd_frame(text)},
      {"c.jsonl.gz", gzipped(half) + gzipped("") + gzipped(rest) + std::string(512, '\0')},
      {"d.jsonl.zst", "\x5e\x2a\x4d\x18\x03" + std::string("\0\0\0abc", 6) + zstd_frame(half) +
                          zstd_frame("") + zstd_frame(rest)},
      {"gzip_by_content.json", gzipped(text)},
      {"plain_by_content.jsonl.zst", text}};
  for (const auto& [name, bytes] : files) {
    write_file(folder / name, bytes);
    EXPECT_EQ(tokens("--input " + (folder / name)), expected) << name;
    EXPECT_EQ(tokens("--input - <" + (folder / name)), expected) << name;
  }
}

TEST_F(PreprocessInputs, DoNotDependOnFiles) {
  write_file(folder / "p1.jsonl", parts[0].substr(0, parts[0].size() - 1));  // without the last \n
  write_file(folder / "p2.jsonl", "");
  write_file(folder / "p3.jsonl", parts[1]);
  write_file(folder / "comma,.jsonl", parts[1]);
  const std::string p1 = folder / "p1.jsonl", p2 = folder / "p2.jsonl", p3 = folder / "p3.jsonl";
  EXPECT_EQ(tokens("--input " + p1 + " " + p2 + " " + p3), expected);
  EXPECT_EQ(tokens("--input " + p1 + "," + p3), expected);
  EXPECT_EQ(tokens("--input " + p1 + " --json-keys text --input " + (folder / "comma,.jsonl")),
            expected);
  EXPECT_EQ(tokens("--input '" + (folder / "p?.jsonl'")), expected);
  EXPECT_NE(tokens("--input " + p3 + " " + p1), expected);
}

TEST_F(PreprocessInputs, ComeFromPipes) {
  write_file(folder / "p1.jsonl", parts[0]);
  write_file(folder / "p2.jsonl.gz", gzipped(parts[1]));
  const std::string p1 = folder / "p1.jsonl", p2 = folder / "p2.jsonl.gz", fifo = folder / "fifo";
  EXPECT_EQ(tokens("--input -", "(cat " + p1 + "; sleep 0.1; zcat " + p2 + ") | "), expected);
  EXPECT_EQ(tokens("--input " + p1 + " -", "cat " + p2 + " | "), expected);
  EXPECT_EQ(tokens("--input <(cat " + p1 + ") <(cat " + p2 + ")"), expected);
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_EQ(tokens("--input " + fifo + " " + p2, "(sleep 0.1; cat " + p1 + " >" + fifo + ") & "),
            expected);
}

// A pipe has no name that tells its kind, so --documents does.
TEST_F(PreprocessInputs, AreTextInPipesIfDocumentsIsGiven) {
  write_file(folder / "a.txt", "one\n\ntwo");
  write_file(folder / "b.txt.gz", gzipped("three\n"));
  const std::string flags = "--tokenizer-type ByteLevelTokenizer --output-prefix " +
                            (folder / "out") + " --input " + (folder / "b.txt.gz");
  ASSERT_EQ(run(flags + " - --documents paragraph <" + (folder / "a.txt")), 0) << output;
  EXPECT_THAT(documents(folder / "out_text_document"), ElementsAre("three\n", "one\n", "two"));
  ASSERT_EQ(run(flags + " " + (folder / "a.txt")), 0) << output;  // a document is a file
  EXPECT_THAT(documents(folder / "out_text_document"), ElementsAre("three\n", "one\n\ntwo"));
  EXPECT_THAT(misuse(flags + " - </dev/null"),
              HasSubstr("b.txt.gz is text, but - is JSON lines; one run takes one of the two"));
  EXPECT_THAT(misuse(flags + " --json-keys text"), HasSubstr("--json-keys is not for --input "));
}

TEST_F(PreprocessInputs, AreNamedWithTheirOwnLines) {
  const std::string bad = "{\"text\": \"a\"}\n\n{\"text\": 1}\n";
  write_file(folder / "p1.jsonl", parts[0]);
  write_file(folder / "bad.jsonl.zst", zstd_frame(bad));
  write_file(folder / "bad.jsonl", bad);
  const std::string flags = "--tokenizer-type ByteLevelTokenizer --output-prefix " +
                            (folder / "out") + " --input " + (folder / "p1.jsonl ");
  EXPECT_THAT(refusal(flags + (folder / "bad.jsonl.zst")),
              HasSubstr("bad.jsonl.zst:3: has no string \"text\""));
  EXPECT_THAT(refusal(flags + "- <" + (folder / "bad.jsonl")),
              HasSubstr("standard input:3: has no string \"text\""));
}

TEST_F(PreprocessInputs, AreCheckedBeforeTheWork) {
  const std::string flags = "--tokenizer-type ByteLevelTokenizer --output-prefix " +
                            (folder / "out") + " --input " + (folder / "all.jsonl ");
  const std::string twice = folder / "twice.jsonl.gz";
  write_file(twice, gzipped(zstd_frame(text)));
  write_file(folder / "table.parquet", "PAR1");
  write_file(folder / "wide.jsonl.gz", gzipped(std::string("\xff\xfe{\0", 4)));
  const std::pair<std::string, std::string> cases[] = {
      {folder / "absent.jsonl", "absent.jsonl: cannot open: No such file"},
      {folder / "table.parquet", "table.parquet: is parquet; convert it first: python3 -c"},
      {folder / "wide.jsonl.gz", "is UTF-16, expected UTF-8 once it is unpacked; convert it first"},
      {twice, "is compressed twice; unpack it once: zcat " + twice}};
  for (const auto& [path, what] : cases) EXPECT_THAT(refusal(flags + path), HasSubstr(what));
  EXPECT_THAT(misuse(flags + "'" + (folder / "absent*'")),
              HasSubstrs("absent*'", ": no file matches"));
  EXPECT_THAT(misuse(flags + "- -"), HasSubstr("--input - is given twice"));
}

// Nothing is written of an input that is damaged behind its beginning.
TEST_F(PreprocessInputs, MayBeDamaged) {
  const std::string flags = "--tokenizer-type ByteLevelTokenizer --output-prefix " +
                            (folder / "out") + " --input " + (folder / "all.jsonl ");
  const std::pair<std::string, std::string> packed[] = {{"a.jsonl.gz", gzipped(text)},
                                                        {"a.jsonl.zst", zstd_frame(text)}};
  for (const auto& [name, bytes] : packed) {
    write_file(folder / name, bytes.substr(0, bytes.size() - 1));
    EXPECT_THAT(refusal(flags + (folder / name)),
                HasSubstr(name + ": is cut off at byte " + std::to_string(bytes.size() - 1)));
    std::string flipped = bytes;
    flipped[bytes.size() - 5] ^= 1;  // in the checksum of gzip, and in the last block of zstd
    write_file(folder / name, flipped);
    EXPECT_EQ(run(flags + (folder / name)), 1) << output;
    EXPECT_EQ(folder.files(), 2u) << name;  // the inputs
    std::filesystem::remove(folder / name);
  }
}

}  // namespace
}  // namespace anymesh
