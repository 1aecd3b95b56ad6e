#include "tests/tools/preprocess_data.h"

#include <sentencepiece_trainer.h>
#include <sys/stat.h>

#include <cstdlib>
#include <functional>
#include <nlohmann/json.hpp>

#include "framework/data/indexed_dataset.h"
#include "framework/data/tokenizers/tokenizer.h"
#include "framework/format/folder.h"

namespace anymesh {
namespace {

TEST_F(PreprocessData, WritesTheFilesThatMegatronWrote) {
  for (const char* workers : {"1", "2", "5"}) {
    const std::string prefix = folder / ("corpus" + std::string(workers));
    ASSERT_EQ(run(megatron_flags + "--output-prefix " + prefix + " --workers " + workers), 0)
        << output;
    for (const char* suffix : {".bin", ".idx"}) {
      EXPECT_EQ(read_file(prefix + "_text_document" + suffix),
                read_file(data_fixture("corpus_text_document" + std::string(suffix))))
          << suffix << " with " << workers << " workers";
    }
    EXPECT_THAT(output, HasSubstr("83 documents, 0.31 MB"));
    EXPECT_THAT(output, HasSubstr("303159 tokens of 2 bytes, vocabulary 512"));
    EXPECT_THAT(output, HasSubstr("unigram entropy: 3.2059 nats/token"));
  }
  EXPECT_EQ(folder.files(), 6u);
}

TEST_F(PreprocessData, KeepsTheOrderOfManyBatches) {
  std::string lines;
  std::vector<std::string> expected;
  for (int i = 0; i < 300; ++i) {
    expected.push_back(std::to_string(i) + std::string(30000 + 7 * i, 'x'));
    lines += "{\"text\": \"" + expected.back() + "\"}\n";
  }
  ASSERT_EQ(run(input("a.jsonl", lines) + "--workers 4"), 0) << output;
  EXPECT_EQ(documents(folder / "out_text_document"), expected);
}

TEST_F(PreprocessData, CountsTheEndOfDocumentOnlyWhenTold) {
  const std::string flags =
      input("a.jsonl", "{\"text\":\"one\"}\n{\"text\":\"\"}\n\n{\"text\":\"two\"}");
  EXPECT_THAT(made(flags + "--append-eod --count-eod"),
              ElementsAre("one<|endoftext|>", "two<|endoftext|>"));
  EXPECT_THAT(made(flags + "--append-eod"), ElementsAre("one", "<|endoftext|>tw"));
  EXPECT_THAT(made(flags), ElementsAre("one", "two"));
}

TEST_F(PreprocessData, BeginsDocumentsOnlyWhenTold) {
  const std::string flags =
      input("a.jsonl", "{\"text\":\"one\"}\n{\"text\":\"\"}\n{\"text\":\"two\"}");
  EXPECT_THAT(made(flags + "--prepend-bos"), ElementsAre("<|endoftext|>one", "<|endoftext|>two"));
}

TEST_F(PreprocessData, WritesOneOutputForEachKey) {
  const std::string flags = input("a.jsonl", "{\"text\":\"body\",\"title\":\"head\"}\n");
  for (const char* keys : {"--json-keys text,title", "--json-keys text title --workers 1"}) {
    EXPECT_THAT(made(flags + keys), ElementsAre("body"));
    EXPECT_THAT(documents(folder / "out_title_document"), ElementsAre("head"));
    for (const char* file : {"out_text_document", "out_title_document"})
      for (const char* suffix : {".idx", ".bin"})
        std::filesystem::remove(folder / (file + std::string(suffix)));
  }
}

TEST_F(PreprocessData, TakesASentencePieceModel) {
  std::string model;
  const auto status = sentencepiece::SentencePieceTrainer::Train(
      "--input=" + data_fixture("text.jsonl") + " --vocab_size=400 --minloglevel=2", nullptr,
      &model);
  ASSERT_TRUE(status.ok()) << status.ToString();
  write_file(folder / "m.model", model);
  write_file(folder / "a.txt", "Licensed under the\nterms");
  ASSERT_EQ(
      run("--input " + (folder / "a.txt") + " --documents line --append-eod --count-eod" +
          " --output-prefix " + (folder / "out") + " --workers 2" +
          " --tokenizer-type GPTSentencePieceTokenizer --tokenizer-model " + (folder / "m.model")),
      0)
      << output;
  EXPECT_THAT(output, HasSubstr("vocabulary 400"));
  const auto tokenizer = make_tokenizer("GPTSentencePieceTokenizer", "", "", folder / "m.model");
  const IndexedDataset data(folder / "out_text_document");
  ASSERT_EQ(data.size(), 2);
  const std::string lines[] = {"Licensed under the", "terms"};
  for (int64_t i = 0; i < 2; ++i) {
    std::vector<int64_t> tokens(data.length(i));
    data.read(i, 0, tokens);
    auto expected = tokenizer->encode(lines[i]);
    expected.push_back(tokenizer->eod());
    EXPECT_EQ(std::vector<int32_t>(tokens.begin(), tokens.end()), expected);
  }
}

TEST_F(PreprocessData, BeginsDocumentsAsTheTokenizersFilesSay) {
  write_file(folder / "a.txt", "Licensed under the\nterms");
  const auto tokens = [&](const std::string& layout, const std::string& more) {
    EXPECT_EQ(run("--input " + (folder / "a.txt") + " --documents line --output-prefix " +
                  (folder / "out") + " --tokenizer-type HFTokenizer --tokenizer-model " +
                  data_fixture("tokenizers/" + layout + ".json") + more),
              0)
        << output;
    const IndexedDataset data(folder / "out_text_document");
    std::vector<int64_t> first(data.length(0));
    data.read(0, 0, first);
    return first;
  };
  EXPECT_EQ(tokens("llama3", "")[0], 0);  // <|begin_of_text|>
  const auto once = tokens("llama3", " --prepend-bos --append-eod --count-eod");
  EXPECT_THAT(once, Contains(0).Times(1));
  EXPECT_EQ(once.back(), 1);
  EXPECT_THAT(tokens("gpt2", ""), Not(Contains(0)));
}

TEST_F(PreprocessData, TakesTheOptionsOfTiktoken) {
  write_file(folder / "t", "IQ== 0\n");
  const std::string flags = input("a.txt", "text");
  EXPECT_THAT(misuse(flags + " --tiktoken-pattern v1"),
              HasSubstr("--tiktoken-pattern is for --tokenizer-type TikTokenizer"));
  const auto tiktoken = [&](const std::string& more) {
    return refusal("--input " + (folder / "a.txt") + " --output-prefix " + (folder / "out") +
                   " --tokenizer-type TikTokenizer --tokenizer-model " + (folder / "t") + more);
  };
  EXPECT_THAT(misuse(flags + " --vocab-size=-1 --tokenizer-type TikTokenizer"),
              HasSubstr("--vocab-size -1: expected a number"));
  EXPECT_THAT(tiktoken(" --tiktoken-pattern v3"), HasSubstr("--tiktoken-pattern v3: expected v1"));
  EXPECT_THAT(tiktoken(" --tiktoken-num-special-tokens 3"),
              HasSubstr("special-tokens 3: expected"));
  EXPECT_THAT(tiktoken(" --vocab-size 9"), HasSubstr("--vocab-size 9 does not fit"));
}

TEST_F(PreprocessData, CutsPlainTextAsTold) {
  const std::string flags = input("a.txt", "\n \na\nb\n\n\t\nc\r\n\nd");
  EXPECT_THAT(made(flags), ElementsAre("\n \na\nb\n\n\t\nc\r\n\nd"));
  EXPECT_THAT(made(flags + "--documents paragraph"), ElementsAre("a\nb\n", "c\r\n", "d"));
  EXPECT_THAT(made(flags + "--documents line"), ElementsAre("a", "b", "c\r", "d"));
}

// Tokens are replaced only if an index beside them says that they are tokens.
TEST_F(PreprocessData, ReplacesTokensAlone) {
  const std::string flags = input("a.txt", "aabb"), prefix = folder / "out_text_document";
  write_file(prefix + ".bin", "thesis");
  EXPECT_THAT(refusal(flags), HasSubstr(prefix + ".bin exists without an .idx beside it"));
  write_file(prefix + ".idx", "thesis too");
  EXPECT_THAT(refusal(flags), HasSubstr(prefix + ".idx exists and is not an index of tokens"));
  EXPECT_EQ(read_file(prefix + ".bin") + read_file(prefix + ".idx"), "thesisthesis too");
  for (const char* suffix : {".bin", ".idx"}) std::filesystem::remove(prefix + suffix);
  EXPECT_EQ(run(flags), 0) << output;
  EXPECT_EQ(run(flags), 0) << output;
  EXPECT_THAT(documents(prefix), ElementsAre("aabb"));
}

TEST_F(PreprocessData, TouchesNoFileBesideItsOwn) {
  const std::string flags = input("a.txt", "aabb"), prefix = folder / "out_text_document";
  const char* suffixes[] = {".bin.tmp", ".idx.tmp", ".bin.partial", ".idx.partial"};
  write_file(folder / "thesis", "thesis");
  for (const bool link : {true, false}) {
    for (const char* suffix : suffixes) {
      std::filesystem::remove(prefix + suffix);
      if (link)
        std::filesystem::create_symlink(folder / "thesis", prefix + suffix);
      else
        write_file(prefix + suffix, "thesis");
    }
    EXPECT_EQ(run(flags), 0) << output;
    EXPECT_THAT(documents(prefix), ElementsAre("aabb"));
    for (const char* suffix : suffixes) EXPECT_EQ(read_file(prefix + suffix), "thesis") << suffix;
  }
  EXPECT_EQ(folder.files(), 8u);  // the input, the thesis, the output, and the suffixes
  const std::string before = read_file(prefix + ".bin") + read_file(prefix + ".idx");
  std::filesystem::create_symlink(folder / "thesis", prefix + ".tmp");
  EXPECT_THAT(refusal(flags), HasSubstr(prefix + ".tmp is not of a run of ours that was killed"));
  std::filesystem::remove(prefix + ".tmp");
  write_file(prefix + ".tmp", "thesis");
  EXPECT_THAT(refusal(flags), HasSubstr(prefix + ".tmp is not of a run of ours that was killed"));
  EXPECT_EQ(read_file(prefix + ".tmp") + read_file(folder / "thesis"), "thesisthesis");
  std::filesystem::remove(prefix + ".tmp");
  std::filesystem::create_directory(prefix + ".tmp");
  write_file(prefix + ".tmp/tokens.bin", "thesis");
  EXPECT_THAT(refusal(flags), HasSubstr("tokens.bin is not of a run of ours that was killed"));
  EXPECT_EQ(read_file(prefix + ".tmp/tokens.bin"), "thesis");
  EXPECT_EQ(read_file(prefix + ".bin") + read_file(prefix + ".idx"), before);
}

// finish() was killed before one of its steps. A run that fails leaves the old tokens, or the new.
TEST_F(PreprocessData, GoesOnAfterAKillBetweenTheNames) {
  namespace fs = std::filesystem;
  const std::string flags = input("a.txt", "aabb"), none = input("none.jsonl", ""),
                    prefix = folder / "out_text_document", built = prefix + ".tmp/",
                    bin = prefix + ".bin", idx = prefix + ".idx";
  const std::function<void()> steps[] = {[&] { fs::rename(bin, built + "old.bin"); },
                                         [&] { fs::remove(idx); },
                                         [&] { fs::rename(built + "tokens.bin", bin); },
                                         [&] { fs::rename(built + "tokens.idx", idx); }};
  for (size_t done = 0; done <= std::size(steps); ++done) {
    ASSERT_EQ(run(flags), 0) << output;
    prepare_build_folder(prefix + ".tmp", {.others = {"tokens.bin", "tokens.idx", "old.bin"}});
    fs::copy(bin, built + "tokens.bin");
    fs::copy(idx, built + "tokens.idx");
    for (size_t step = 0; step < done; ++step) steps[step]();
    EXPECT_EQ(run(none), 1) << output;
    EXPECT_FALSE(fs::exists(prefix + ".tmp")) << done;
    EXPECT_THAT(documents(prefix), ElementsAre("aabb")) << done;
  }
}

TEST_F(PreprocessData, ReportsTheUnigramEntropy) {
  ASSERT_EQ(run(input("a.txt", "aabb")), 0) << output;
  EXPECT_THAT(output, HasSubstr("unigram entropy: 0.6931 nats/token"));
}

TEST_F(PreprocessData, PutsAroundDocumentsWhatATemplateHas) {
  auto tokenizer = nlohmann::json::parse(read_file(data_fixture("tokenizers/gpt2.json")));
  const nlohmann::json text = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}},
                       mark = {{"SpecialToken", {{"id", "m"}, {"type_id", 0}}}};
  tokenizer["post_processor"] = {{"type", "TemplateProcessing"},
                                 {"single", {mark, text, mark}},
                                 {"special_tokens", {{"m", {{"ids", {7, 0}}}}}}};
  write_file(folder / "tokenizer.json", tokenizer.dump());
  write_file(folder / "a.jsonl", "{\"text\": \"a\"}\n{\"text\": \"\"}\n");
  const auto lengths = [&](const std::string& more) {
    EXPECT_EQ(run("--input " + (folder / "a.jsonl") + " --output-prefix " + (folder / "out") +
                  " --tokenizer-type HFTokenizer --tokenizer-model " + (folder / "") + more),
              0)
        << output;
    const IndexedDataset data(folder / "out_text_document");
    std::vector<int64_t> all(data.size());
    for (int64_t i = 0; i < data.size(); ++i) all[i] = data.length(i);
    return all;
  };
  EXPECT_THAT(lengths(""), ElementsAre(5, 4));
  EXPECT_THAT(lengths(" --append-eod --count-eod --prepend-bos"), ElementsAre(6, 5));
  EXPECT_THAT(lengths(" --tokenizer-hf-no-include-special-tokens"), ElementsAre(1));
}

TEST_F(PreprocessData, TakesMegatronsFlags) {
  const std::string prefix = folder / "corpus";
  ASSERT_EQ(run(megatron_flags + "--output-prefix " + prefix +
                " --partitions 4 --log-interval=10 --keep-sequential-samples --lang english "
                "--workers-to-check 16 32 --vocab-extra-ids 0 --workers 2"),
            0)
      << output;
  EXPECT_EQ(read_file(prefix + "_text_document.bin"),
            read_file(data_fixture("corpus_text_document.bin")));
  EXPECT_THAT(output, HasSubstr("without effect on the tokens: --partitions --log-interval "
                                "--keep-sequential-samples --lang --workers-to-check"));
  const std::pair<const char*, const char*> refused[] = {
      {"--split-sentences", "--split-sentences: documents are not cut into sentences"},
      {"--vocab-extra-ids 100", "--vocab-extra-ids 100: the vocabulary is the tokenizer's; accept"},
      {"--tokenizer-name-or-path gpt2", "use --tokenizer-type HFTokenizer"},
      {"--find-optimal-num-workers", "--workers 0 takes all cores"},
      {"--tokenizer-special-tokens a b", "special tokens are those of the tokenizer's files"}};
  for (const auto& [flag, reason] : refused)
    EXPECT_THAT(misuse(megatron_flags + "--output-prefix " + prefix + " " + flag),
                HasSubstr(reason));
}

TEST_F(PreprocessData, FailsWhenWhatItPrintsIsLost) {
  for (const std::string& flags : {std::string("--help"), input("a.txt", "text")}) {
    const std::string log = folder / "log";
    const std::string command = std::string(PREPROCESS_DATA) + " " + flags + " >/dev/full 2>" + log;
    EXPECT_EQ(WEXITSTATUS(std::system(command.c_str())), 1) << flags;
    EXPECT_THAT(read_file(log), EndsWith("preprocess_data: cannot write to standard output: No "
                                         "space left on device\n"));
  }
}

TEST_F(PreprocessData, NamesTheFlagThatIsMeant) {
  EXPECT_THAT(misuse("--vocab v"), HasSubstr("unknown flag --vocab; did you mean --vocab-file?"));
  EXPECT_THAT(misuse("--worker=3"), HasSubstr("unknown flag --worker; did you mean --workers?"));
  EXPECT_THAT(misuse("--zzzzzzzz"), HasSubstr("unknown flag --zzzzzzzz (see --help)"));
}

TEST_F(PreprocessData, RefusesFlagsItDoesNotKnowOrCannotMean) {
  const std::string text = input("a.txt", "text"), json = input("a.jsonl", "{\"text\":\"t\"}");
  EXPECT_THAT(misuse(text + "--split-sentences"), HasSubstr("split-sentences"));
  EXPECT_THAT(misuse("surplus " + text), HasSubstr("unexpected argument 'surplus'"));
  EXPECT_THAT(misuse(text + "--dataset-impl lazy"),
              HasSubstr("--dataset-impl lazy: expected mmap"));
  EXPECT_THAT(misuse(text + "--documents page"), HasSubstr("--documents page: expected file"));
  EXPECT_THAT(misuse(text + "--json-keys text"), HasSubstr("--json-keys is not for"));
  EXPECT_THAT(misuse(json + "--documents line"), HasSubstr("--documents is not for"));
  EXPECT_THAT(misuse(json + "--json-keys text,text"), HasSubstr("--json-keys names a key twice"));
  EXPECT_THAT(misuse(text + "--count-eod"), HasSubstr("--count-eod needs --append-eod"));
  EXPECT_THAT(misuse(text + "--workers -1"), HasSubstr("--workers -1: expected 0 to 1024"));
  EXPECT_THAT(misuse(text + "--workers x"), HasSubstr("--workers x: expected 0 to 1024"));
  EXPECT_THAT(refusal(text + "--vocab-file v"), HasSubstr("takes no --vocab-file"));
  EXPECT_THAT(misuse("--input a.txt"), HasSubstr("--output-prefix is missing"));
  EXPECT_THAT(misuse(input("a.csv", "text")),
              HasSubstr("expected a name in .jsonl, .json or .txt"));
  EXPECT_THAT(refusal(input("empty.txt", "")), HasSubstr("has no documents"));
  std::filesystem::remove(folder / "a.txt");
  EXPECT_THAT(refusal(text), HasSubstr("a.txt: cannot open: No such file"));
}

TEST_F(PreprocessData, WhatIsNoTextIsNamedWithTheWayOut) {
  const std::pair<std::string, std::string> kinds[] = {
      {"\x1f\x8b\x08", "is cut off at byte 3, within gzip data"},
      {"\x28\xb5\x2f\xfd", "is cut off at byte 4, within zstd data"},
      {"\xfd\x37zXZ", "is compressed by xz; convert it first: xzcat "},
      {"BZh9", "is compressed by bzip2; convert it first: bzcat "},
      {"PK\x03\x04", "is a zip archive; convert it first: unzip -p "},
      {"PAR1", "is parquet; convert it first: python3 -c 'import "},
      {std::string(257, 'a') + "ustar", "is a tar archive; convert it first: tar -xOf "},
      {std::string("\xff\xfe{\0", 4),
       "is UTF-16, expected UTF-8; convert it first: iconv -f UTF-16"},
      {std::string("\xfe\xff\0{", 4), "is UTF-16, expected UTF-8"},
      {" [{\"text\": \"a\"}]", "begins a JSON array, expected one object a line"},
      {"{\n\"text\": \"a\"\n}\n", "; expected one object a line"},
      {"version https://git-lfs.github.com/spec/v1\noid sha256:4d\n", "is a git-lfs pointer"}};
  for (const auto& [text, what] : kinds)
    EXPECT_THAT(refusal(input("a.jsonl", text)), HasSubstrs("a.jsonl", what));
  ASSERT_EQ(mkfifo((folder / "f.txt").c_str(), 0600), 0);
  write_file(folder / "t.txt", "text");
  const std::string text = "--output-prefix " + (folder / "out") + " --input " + (folder / "t.txt");
  for (const auto& [path, what] : {std::pair(folder / "f.txt", "f.txt: is a FIFO, expected a file"),
                                   std::pair(folder / "", ": is a folder, expected a file")}) {
    const std::string vocabulary = " --tokenizer-type GPT2BPETokenizer --vocab-file ";
    EXPECT_THAT(refusal(text + vocabulary + path + " --merge-file " + data_fixture("merges.txt")),
                HasSubstr(what));
    EXPECT_THAT(refusal(text + vocabulary + data_fixture("vocab.json") + " --merge-file " + path),
                HasSubstr(what));
    EXPECT_THAT(
        refusal(text + " --tokenizer-type SentencePieceTokenizer --tokenizer-model " + path),
        HasSubstr(what));
  }
}

}  // namespace
}  // namespace anymesh
