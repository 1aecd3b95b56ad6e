// Converters and exporters must never remove or replace files that are not theirs, write through a
// link, mix two outputs, or copy files while they change.

#include <atomic>
#include <functional>
#include <thread>

#include "framework/format/folder.h"
#include "framework/format/io.h"
#include "framework/format/reshard.h"
#include "framework/format/sharded.h"
#include "framework/format/torch_file.h"
#include "framework/format/whole.h"
#include "tests/support/checkpoints.h"
#include "tests/support/tree.h"
#include "tests/tools/hf_folder.h"

namespace anymesh {
namespace {

// Expects `work` to end with an error that names `entry`, and all in the folder to stay as it is.
template <class Work>
void expect_refused(const fs::path& folder, const fs::path& entry, Work work) {
  const Tree before = tree(folder);
  EXPECT_THAT(work(), HasSubstr(entry.string()));
  EXPECT_EQ(tree(folder), before) << entry;
}

class Outputs : public TempFolder {
 protected:
  std::string convert(const fs::path& input) const {
    return message_of([&] {
      convert_to_universal({.input = input, .output = output_, .inject_missing_info = true}, {});
    });
  }
  std::string convert() const { return convert(tag_of("z1-bf16-dp2")); }
  std::string export_to(const fs::path& output, Fp32Options options = {}) const {
    if (options.checkpoint.empty()) options.checkpoint = tag_of("z1-bf16-dp2");
    options.output = output;
    return message_of([&] { export_fp32(options, {}); });
  }
  template <class Work>
  void expect_refused(const fs::path& entry, Work work) const {
    anymesh::expect_refused(folder_, entry, work);
  }

  const fs::path output_ = folder_ / "o", thesis_ = folder_ / "thesis.txt";
};

TEST_F(Outputs, AFolderThatLooksLikeAUniversalOneStays) {
  const auto convert = [this] { return this->convert(); };
  fs::create_directories(output_ / "zero" / "w");
  for (const fs::path& mine :
       {output_ / "zero" / "thesis.txt", output_ / "zero" / "w" / "fp32.pt", output_ / "notes.txt",
        output_ / "mp_rank_00_model_states.pt", output_ / "manifest.json"}) {
    write_file(mine, "thesis");
    expect_refused(mine, convert);
    fs::remove(mine);
  }
  fs::remove_all(output_ / "zero");
  fs::copy(tag_of("z1-bf16-dp2"), output_, fs::copy_options::recursive);  // an ordinary tag
  expect_refused(output_, convert);
}

TEST_F(Outputs, OursIsReplacedUnlessSomethingIsBesideItsManifest) {
  ASSERT_EQ(convert(), "");
  const Tree first = tree(output_);
  ASSERT_EQ(convert(), "");
  EXPECT_EQ(tree(output_), first);
  for (const fs::path& mine : {output_ / "notes.txt", output_ / "zero" / "mine" / "fp32.pt"}) {
    fs::create_directories(mine.parent_path());
    write_file(mine, "thesis");
    expect_refused(mine.parent_path() == output_ ? mine : mine.parent_path(),
                   [this] { return convert(); });
    fs::remove(mine);
    if (mine.parent_path() != output_) fs::remove(mine.parent_path());
  }
  EXPECT_EQ(convert(), "");
}

TEST_F(Outputs, DeepSpeedsUniversalFolderIsReplacedByItsKind) {
  for (const std::string& name : kConverted) {
    for (const auto& entry : fs::directory_iterator(fixture(name) / "universal"))
      if (entry.is_directory()) fs::copy(entry.path(), output_, fs::copy_options::recursive);
    EXPECT_EQ(convert(), "") << name;
    EXPECT_TRUE(fs::exists(output_ / kManifestFile));
    EXPECT_FALSE(fs::exists(temporary_of(output_)));
    fs::remove_all(output_);
  }
}

TEST_F(Outputs, LinksAreNotFollowed) {
  const auto convert = [this] { return this->convert(); };
  const fs::path temporary = temporary_of(output_), home = folder_ / "home";
  fs::create_directory(home);
  write_file(home / "thesis.txt", "thesis");
  for (const fs::path& link : {output_, temporary}) {
    fs::create_directory_symlink(home, link);
    expect_refused(link, convert);
    fs::remove(link);
  }
  const fs::path file = "zero/ln_f.weight/fp32.pt", inside = temporary / file;
  prepare_build_folder(temporary, {.files = {file}});
  fs::create_symlink(home / "thesis.txt", inside);
  expect_refused(inside, convert);
  fs::remove(inside);
  fs::create_hard_link(home / "thesis.txt", inside);
  EXPECT_THAT(convert(), HasSubstr(inside.string()));
  EXPECT_EQ(read_file(home / "thesis.txt"), "thesis");
}

TEST_F(Outputs, TheSecondConverterNamesTheFirst) {
  const OutputLock lock = OutputLock::beside(output_, "x");
  expect_refused(output_, [this] { return convert(); });
  EXPECT_THAT(convert(), HasSubstrs("--output_folder " + output_.string() + " is being written by ",
                                    std::to_string(getpid())));
}

// The second must not judge the files that the first builds, because their list goes before the
// folder gets its name.
TEST_F(Outputs, TheSecondConverterLooksAtNothingThatTheFirstBuilds) {
  const OutputLock lock = OutputLock::beside(output_, "--output_folder");
  fs::create_directories(temporary_of(output_) / "zero" / "w");
  std::ofstream(temporary_of(output_) / "zero" / "w" / "fp32.pt") << "half";
  EXPECT_THAT(convert(tag_of("z1-bf16-dp2")), HasSubstr("is being written by"));
}

TEST_F(Outputs, CopiesAreCheckedLikeWhatIsMerged) {
  const std::string name = zero3_model_states_file(1, 0);
  const fs::path tag = copy_of("z3-bf16-dp2", folder_), file = tag / name;
  const std::string whole = read_file(file);
  std::string flipped = whole;
  flipped[whole.find("data.pkl") + 100] ^= 1;
  for (const std::string& damaged : {std::string(), whole.substr(0, whole.size() / 2),
                                     whole.substr(0, whole.size() - 1), flipped}) {
    write_file(file, damaged);
    EXPECT_THAT(convert(tag), HasSubstr(name)) << damaged.size();
    EXPECT_FALSE(fs::exists(output_));
    EXPECT_THAT(export_to(folder_ / "w", {.checkpoint = tag}), HasSubstr(name)) << damaged.size();
  }
  write_file(file, whole);
  EXPECT_EQ(convert(tag), "");
  EXPECT_EQ(read_file(output_ / name), whole);
}

// A tensor that is copied, though no parameter is made from it.
TEST_F(Outputs, TheTensorsOfCopiesAreCheckedToo) {
  const fs::path tag = copy_of("z1-bf16-dp2", folder_), file = tag / model_states_file(0);
  std::string bytes = read_file(file);
  const ZipReader zip(file);
  const auto largest = std::ranges::max_element(zip.records(), {}, &ZipReader::Record::size);
  bytes[largest->offset + largest->size / 2] ^= 1;
  write_file(file, bytes);
  EXPECT_THAT(convert(tag), HasSubstr(largest->name));
  EXPECT_FALSE(fs::exists(output_));
}

// Runs `work` while somebody changes a file over and over. Runs it again, 20 times at most, if a busy
// machine made the changes before it looked.
template <class Change, class Work>
std::string meanwhile(Change change, Work work) {
  std::atomic<int> changes{0};
  std::jthread somebody([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      change(changes + 1);
      ++changes;
    }
  });
  for (int times = 0;;) {
    const int before = changes;
    const std::string message = work();
    if (changes > before + 1 && (!message.empty() || ++times == 20)) return message;
  }
}

TEST_F(Outputs, SourcesThatChangeMeanwhileAreAnError) {
  const fs::path tag = copy_of("z1-bf16-dp2", folder_), file = tag / "note.json";
  write_file(file, "{}");
  const fs::file_time_type start = fs::last_write_time(file);
  const auto touch = [&](int i) { fs::last_write_time(file, start + std::chrono::seconds(i)); };
  const auto replace = [&](int) { write_text_atomically(file, "{}"); };
  const std::function<void(int)> changes[] = {touch, replace};
  for (const auto& change : changes) {
    const auto converts = [&] {
      fs::remove_all(output_);
      return convert(tag);
    };
    EXPECT_THAT(meanwhile(change, converts), HasSubstr(file.string()));
    EXPECT_FALSE(fs::exists(output_));
    const auto exports = [&] {
      fs::remove_all(folder_ / "w");
      return export_to(folder_ / "w", {.checkpoint = tag});
    };
    EXPECT_THAT(meanwhile(change, exports), HasSubstr(file.string()));
    EXPECT_FALSE(fs::exists(folder_ / "w" / "pytorch_model.bin"));
  }
  const SourceFiles sources(tag);
  EXPECT_EQ(message_of([&] { sources.expect_unchanged(); }), "");
  fs::remove(file);
  EXPECT_REFUSES(sources.expect_unchanged(), "was removed");
}

TEST_F(Outputs, ExportsReplaceExportsAlone) {
  const fs::path w = folder_ / "w", file = w / "pytorch_model.bin";
  fs::create_directory(w);
  write_file(w / "README.md", "mine");
  ASSERT_EQ(export_to(w), "");
  const std::string bytes = read_file(file);
  ASSERT_EQ(export_to(w, {.max_shard_size = 20'000}), "");
  EXPECT_FALSE(fs::exists(file));
  ASSERT_EQ(export_to(w), "");
  EXPECT_EQ(read_file(file), bytes);
  EXPECT_EQ(list_folder(w), ".anymesh.json, README.md, pytorch_model.bin");

  std::string tuned = bytes;  // same size
  tuned.back() ^= 1;
  write_file(file, tuned);
  for (const int later : {1, -1}) {  // than the record, by a second
    fs::last_write_time(file, fs::last_write_time(w / kRecordFile) + std::chrono::seconds(later));
    expect_refused(file, [&] { return export_to(w); });
  }
  fs::remove(w / kRecordFile);
  expect_refused(file, [&] { return export_to(w); });
  const fs::path shard = w / "pytorch_model-00001-of-00002.bin";
  write_file(shard, "downloaded");
  expect_refused(shard, [&] { return export_to(w); });
  EXPECT_EQ(export_to(w, {.overwrite = true}), "");
  EXPECT_EQ(read_file(file), bytes);
  EXPECT_FALSE(fs::exists(shard));
  EXPECT_EQ(read_file(w / "README.md"), "mine");
}

// As `cp -r` does: the copies are newer than the record.
TEST_F(Outputs, ACopyOfAnExportIsOursToo) {
  const fs::path w = folder_ / "w", copy = folder_ / "copy", file = copy / "pytorch_model.bin";
  ASSERT_EQ(export_to(w), "");
  fs::copy(w, copy);
  fs::last_write_time(file, fs::last_write_time(copy / kRecordFile) + std::chrono::seconds(1));
  EXPECT_EQ(export_to(copy), "");
}

// The names lead through a link into the source.
TEST_F(Outputs, NoneIsWrittenIntoItsSource) {
  const fs::path tag = copy_of("z1-bf16-dp2", folder_), link = folder_ / "link";
  fs::create_directory_symlink(tag, link);
  for (const fs::path& output : {link / "x", tag / "x", link / "x" / "y", link}) {
    const auto converts = [&] {
      return message_of([&] { convert_to_universal({.input = tag, .output = output}, {}); });
    };
    expect_refused(output, converts);
    EXPECT_THAT(converts(), HasSubstr("must not be inside each other"));
    expect_refused(output, [&] {
      return message_of([&] {
        reshard({.input = tag, .output = output, .target = ReshardTarget::parse("dp=3")}, {});
      });
    });
    expect_refused(output, [&] { return export_to(output, {.checkpoint = tag}); });
  }
}

// A conversion that was killed may have left files of another content, and the user's beside them.
TEST_F(Outputs, GoesOnFromFilesOfAnotherTime) {
  ASSERT_EQ(convert(), "");
  const Tree expected = tree(output_);
  fs::remove_all(output_);
  const fs::path file = "zero/ln_f.weight/fp32.pt", temporary = temporary_of(output_),
                 stray = temporary / "zero" / "stray.pt";
  prepare_build_folder(temporary, {.files = {file}});
  write_file(temporary / file, "of another time");
  write_file(stray, "thesis");
  expect_refused(stray, [this] { return convert(); });
  fs::remove(stray);
  EXPECT_EQ(convert(), "");
  EXPECT_EQ(tree(output_), expected);
}

// The user's folder has the name to which a replaced one moves where a file system cannot swap.
TEST_F(Outputs, AFolderOfTheUsersKeepsItsName) {
  const fs::path mine = replaced_of(output_) / "zero" / "thesis.txt";
  fs::create_directories(mine.parent_path());
  write_file(mine, "thesis");
  expect_refused(mine, [this] { return convert(); });
}

TEST_F(Outputs, AnExportRemovesWhatAKilledOneLeftAndNoOtherTemporaryFile) {
  const fs::path w = folder_ / "w", build = w / "weights.tmp",
                 shard = "pytorch_model-00001-of-00009.bin";
  fs::create_directory(w);
  prepare_build_folder(build, {.files = {shard}});
  write_file(build / shard, "half");
  write_file(w / ".anymesh.json.0123abcd.tmp", "half");
  write_file(thesis_, "thesis");
  fs::create_symlink(thesis_, w / "pytorch_model.bin.tmp");
  write_file(w / "mine.tmp", "mine");
  EXPECT_EQ(export_to(w), "");
  EXPECT_EQ(list_folder(w), ".anymesh.json, mine.tmp, pytorch_model.bin, pytorch_model.bin.tmp");
  EXPECT_EQ(read_file(thesis_), "thesis");
  fs::create_directory(build);
  write_file(build / "mine", "mine");
  expect_refused(build / "mine", [&] { return export_to(w); });
  fs::remove_all(build);
  const OutputLock lock = OutputLock::inside(w, "x");
  EXPECT_THAT(export_to(w), HasSubstr("is being written by"));
}

class HfOutputs : public HfFolder {
 protected:
  HfOutputs() {
    write(tiny("llama"));
    write_file(theirs_ / "tokenizer.json", "{\"theirs\": 1}");
  }
  std::string import_model(bool overwrite = false) const {
    return message_of([&] { import_hf(theirs_, save_, {}, overwrite); });
  }
  std::string export_model() const {
    return message_of([&] { export_gpt({.checkpoint = save_, .output = back_}); });
  }
};

TEST_F(HfOutputs, AnImportReplacesNoTokenizerOfOthers) {
  const fs::path file = save_ / "tokenizer.json";
  fs::create_directory(save_);
  write_file(file, "{\"mine\": 1}");
  expect_refused(folder_, file, [this] { return import_model(); });
  EXPECT_EQ(import_model(/*overwrite=*/true), "");
  EXPECT_EQ(read_file(file), read_file(theirs_ / "tokenizer.json"));
  write_file(theirs_ / "tokenizer.json", "{\"newer\": 1}");  // the old one is ours now
  EXPECT_EQ(import_model(), "");
  EXPECT_EQ(read_file(file), "{\"newer\": 1}");
  fs::remove(save_ / kRecordFile);  // the same content is accepted, whoever wrote it
  EXPECT_EQ(import_model(), "");
}

TEST_F(HfOutputs, AnExportThatWasChangedStays) {
  ASSERT_EQ(import_model(), "");
  ASSERT_EQ(export_model(), "");
  ASSERT_EQ(export_model(), "");
  const fs::path file = back_ / "tokenizer.json";
  write_file(file, "{\"mine, and longer\": 1}");
  expect_refused(folder_, file, [this] { return export_model(); });
  fs::remove_all(back_);
  fs::create_directory_symlink(folder_, temporary_of(back_));
  expect_refused(folder_, temporary_of(back_), [this] { return export_model(); });
}

}  // namespace
}  // namespace anymesh
