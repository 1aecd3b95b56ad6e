// Puts hostile names and texts into every printed place of a file, and something that is no
// checkpoint's file into the place of each. The tools must end, name the file, and print nothing
// that steers a terminal or fills it.

#include <sys/resource.h>
#include <sys/stat.h>

#include <nlohmann/json.hpp>

#include "framework/format/folder/manifest.h"
#include "framework/format/torch_file/safetensors.h"
#include "framework/format/torch_file/zip_format.h"
#include "framework/format/whole/convert.h"
#include "framework/format/whole/fp32_export.h"
#include "framework/util/plain_words.h"
#include "tests/support/synthetic.h"
#include "tests/tools/ckpt_support.h"

namespace anymesh {
namespace {

const std::vector<std::string>& words() {
  static const std::vector<std::string> all = {"\x1b[2J\x1b[31mred",
                                               "a\nproblem: none\r",
                                               std::string("cut\0here", 8),
                                               "\xe2\x80\xae"
                                               "drow",
                                               "\xff\xfe\x80",
                                               "\xc2\x9b"
                                               "2J",
                                               "\x07\x08\x7f\t",
                                               std::string(300'000, 'x'),
                                               std::string(100'000, '\x1b'),
                                               "",
                                               ".",
                                               "..",
                                               "../../etc",
                                               "/",
                                               "a b 'c' \"d\" \\",
                                               "%s%n",
                                               "caf\xc3\xa9"};
  return all;
}

class HostileWords : public TempFolder {
 protected:
  // Returns a command's output, or its error as run_tool() prints it.
  template <class Work>
  std::string said(const Work& work) {
    std::string text;
    try {
      text = work();
    } catch (const std::exception& error) {
      text = printable_message(error);
    }
    std::string_view rest = text;
    while (!rest.empty()) {
      const size_t size = rest[0] == '\n' ? 1 : printable_bytes(rest);
      EXPECT_NE(size, 0u) << printable(rest);
      rest.remove_prefix(std::max<size_t>(size, 1));
    }
    EXPECT_LT(text.size(), 40'000u) << printable(text);
    return text;
  }

  // Returns the output of every command that takes the path.
  std::vector<std::string> all_say(const fs::path& path) {
    const fs::path out = folder_ / "out";
    std::vector<std::string> texts = {
        said([&] { return inspect(path).text; }), said([&] { return verify(path).text; }),
        said([&] { return diff(path, path).text; }),
        said([&] { return export_fp32({.checkpoint = path, .output = out}, {}).source; }),
        said([&] {
          const auto report =
              convert_to_universal({.input = path, .output = out / "universal"}, {});
          std::string warnings;
          for (const std::string& warning : report.warnings) warnings += printable_message(warning);
          return warnings;
        })};
    fs::remove_all(out);
    return texts;
  }
};

TEST_F(HostileWords, NamesOfTensors) {
  for (const std::string& word : words()) {
    const fs::path folder = folder_ / "weights";
    fs::create_directory(folder);
    write_torch_file(folder / "pytorch_model.bin",
                     Value::dict({{word, float_tensor({2}, {1, 2})}, {word + "2", word}}));
    all_say(folder);
    fs::remove(folder / "pytorch_model.bin");
    const std::string header =
        nlohmann::json{{word, {{"dtype", word}, {"shape", {1}}, {"data_offsets", {0, 4}}}}}.dump(
            -1, ' ', false, nlohmann::json::error_handler_t::replace);
    write_file(folder / "model.safetensors",
               Fields().u64(header.size()).text(header + "1234").bytes());
    all_say(folder);
    fs::remove_all(folder);
  }
}

TEST_F(HostileWords, NamesOfParametersAndKeys) {
  for (const std::string& word : words()) {
    const fs::path tag = folder_ / "tag";
    Synthetic{.parameters = {{word, {3}}, {"b", {2}}}}.write(tag);
    all_say(tag);
    Value info = Value::dict({{keys::kUniversalVersion, 0.4}});
    info.set(keys::kTpReplicatedPatterns, Value::list({word, "(" + word, "(?=" + word + ")"}));
    Synthetic{.parameters = {{"a", {3}}}, .tp = 2, .info = info}.write(tag);
    all_say(tag);
    Value state = read_torch_file(tag / model_states_file(0));
    state.set(word, word).set(keys::kDsVersion, Value::dict({{word, Value::list({word})}}));
    state.set(keys::kDpWorldSize, word);
    write_torch_file(tag / model_states_file(0), state);
    all_say(tag);
    fs::remove_all(tag);
  }
}

TEST_F(HostileWords, NamesOfFilesAndTags) {
  Synthetic{.parameters = {{"a", {3}}}}.write(folder_ / "tag");
  for (const std::string& word : words()) {
    const std::string name = word.substr(0, 200);
    if (name.find_first_of(std::string("/\0", 2)) == std::string::npos && name.size() > 2)
      write_file(folder_ / "tag" / (name + ".pt"), "x");
    write_file(folder_ / kLatestFile, word.substr(0, 60'000));
    all_say(folder_);
    write_file(folder_ / kLatestFile, "tag");
    all_say(folder_);
    Manifest manifest{.tag = "t", .files = {{.name = "f", .host = "h"}}};
    std::string text = manifest.to_json();
    for (const char* field : {"\"f\"", "\"h\"", "\"t\"", "\"anymesh checkpoint\"", "\"crc32\""}) {
      std::string changed = text;
      const std::string quoted =
          nlohmann::json(word).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
      write_file(folder_ / "tag" / kManifestFile,
                 changed.replace(changed.find(field), std::strlen(field), quoted));
      said([&] { return verify(folder_ / "tag").text; });
    }
    fs::remove(folder_ / "tag" / kManifestFile);
    const fs::path index = folder_ / "i" / "model.safetensors.index.json";
    fs::create_directory(folder_ / "i");
    write_file(index,
               nlohmann::json{{"weight_map", {{"a", word}, {word, "model.safetensors"}}}}.dump(
                   -1, ' ', false, nlohmann::json::error_handler_t::replace));
    all_say(folder_ / "i");
  }
}

// A name that JSON cannot hold is reported before its file is written.
TEST_F(HostileWords, SafetensorsTakesUtf8Alone) {
  const auto message = message_of([&] {
    write_safetensors(folder_ / "model.safetensors", {{"a\xff", float_tensor({1}, {1})}});
  });
  EXPECT_EQ(message, (folder_ / "model.safetensors").string() +
                         ": JSON takes UTF-8 alone, which the name 'a\\xff' is not");
}

TEST_F(HostileWords, InThePlaceOfAFile) {
  const fs::path tag = folder_ / "checkpoint" / "tag";
  const auto pristine = [&] {
    fs::remove_all(folder_ / "checkpoint");
    Synthetic{.parameters = {{"a", {3}}}, .dp = 2}.write(tag);
    write_file(folder_ / "checkpoint" / kLatestFile, "tag");
    write_file(tag / kManifestFile, Manifest{.tag = "tag"}.to_json());
  };
  pristine();
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder_ / "checkpoint"))
    if (entry.is_regular_file()) files.push_back(entry.path());
  ASSERT_EQ(files.size(), 5u);
  const std::function<void(const fs::path&)> kinds[] = {
      [](const fs::path& path) { mkfifo(path.c_str(), 0600); },
      [](const fs::path& path) { fs::create_directory(path); },
      [](const fs::path& path) { fs::create_symlink(path.filename(), path); },
      [](const fs::path& path) { fs::create_symlink("/dev/zero", path); },
      [](const fs::path& path) { fs::create_symlink("nowhere", path); },
      [](const fs::path& path) { write_file(path, ""); },
      [](const fs::path& path) {
        write_file(path, "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 5\n");
      }};
  for (const fs::path& file : files) {
    for (size_t kind = 0; kind < std::size(kinds); ++kind) {
      pristine();
      fs::remove(file);
      kinds[kind](file);
      for (const std::string& text : all_say(folder_ / "checkpoint")) {
        if (text.find("git-lfs") == std::string::npos) continue;
        EXPECT_THAT(text, HasSubstr(file.filename().string()));
      }
      if (kind != 0) continue;
      const std::string text =
          said([&] { return std::to_string(verify(folder_ / "checkpoint").code); });
      EXPECT_TRUE(text == "1" || text.find("is a FIFO") != std::string::npos) << file << text;
    }
  }
}

TEST_F(HostileWords, AnIdOfTheHubIsNoFolder) {
  const std::string hint = "if it is a model of the hub, download it first: hf download ";
  for (const std::string id : {"no-such-org/model", "/no-such-org/model", "./no-such-org/model"})
    EXPECT_EQ(said([&] { return inspect(id).text; }).find(hint + id) != std::string::npos,
              id[0] == 'n')
        << id;
}

// Each command handles thousands of parameters in a fraction of a second.
TEST_F(HostileWords, ManyParameters) {
  Synthetic source{.dp = 2};
  for (int i = 0; i < 10'000; ++i) source.parameters.push_back({"p" + std::to_string(i), {1}});
  source.write(folder_ / "tag");
  EXPECT_THAT(said([&] { return inspect(folder_ / "tag").text; }), HasSubstr("10000 parameters"));
  EXPECT_EQ(verify(folder_ / "tag").code, 0);
  EXPECT_EQ(diff(folder_ / "tag", folder_ / "tag").code, 0);
}

// In time quadratic in their number, as once, they would take half an hour.
TEST_F(HostileWords, ManyTensorsAndFiles) {
  constexpr int kMany = 200'000;
  std::string header = "{", files;
  for (int i = 0; i < kMany; ++i) {
    const std::string at = std::to_string(i);
    header += (i == 0 ? "\"" : ",\"") + at + R"(":{"dtype":"U8","shape":[1],"data_offsets":[)" +
              at + "," + std::to_string(i + 1) + "]}";
    files += (i == 0 ? "" : ",") + (R"({"name":")" + at) + R"(","bytes":1,"crc32":1,"host":"h"})";
  }
  header += "}";
  const fs::path model = folder_ / "model.safetensors";
  write_file(model, Fields().u64(header.size()).text(header).text(std::string(kMany, 'x')).bytes());
  EXPECT_THAT(said([&] { return inspect(model).text; }), HasSubstr("200000 parameters"));
  const Manifest manifest = Manifest::from_json(
      R"({"format":"anymesh checkpoint","version":1,"tag":"t","iteration":1,"files":[)" + files +
          "]}",
      "m");
  EXPECT_EQ(manifest.files.size(), size_t{kMany});
}

#ifndef ANYMESH_SANITIZE  // the sanitizers need their own address space
TEST_F(HostileWords, WantOfMemoryIsSaidOfTheFile) {
  std::string header = "{\"__metadata__\":{}";
  for (int i = 0; i < 100'000; ++i)
    header += ",\"" + std::to_string(i) + R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  header += "}";
  const fs::path model = folder_ / "model.safetensors";
  write_file(model, Fields().u64(header.size()).text(header).bytes());
  const auto starved = [&] {
    std::ifstream statm("/proc/self/statm");
    rlim_t pages = 0;
    statm >> pages;
    const rlim_t bytes = pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE)) + (20 << 20);
    const rlimit limit{bytes, bytes};
    setrlimit(RLIMIT_AS, &limit);
    const std::string message = message_of([&] { open_checkpoint(model, 1); });
    _exit(message == model.string() + ": not enough memory to read it" ? 0 : 1);
  };
  EXPECT_EXIT(starved(), testing::ExitedWithCode(0), "");
}
#endif

// One name of megabytes costs its length once, not once for each line of a table.
TEST_F(HostileWords, OneLongNameAmongMany) {
  std::string header = R"({"__metadata__":{})";
  for (int i = 0; i < 3000; ++i)
    header += ",\"" + (i == 0 ? std::string(3'000'000, 'n') : std::to_string(i)) +
              R"(":{"dtype":"U8","shape":[1],"data_offsets":[)" + std::to_string(i) + "," +
              std::to_string(i + 1) + "]}";
  header += "}";
  const fs::path model = folder_ / "model.safetensors";
  write_file(model, Fields().u64(header.size()).text(header).text(std::string(3000, 'x')).bytes());
  said([&] { return inspect(model).text; });
  std::ostringstream all;
  EXPECT_EQ(inspect_checkpoint(model, {.all = true}, all), 0);
  EXPECT_LT(all.str().size(), 2'000'000u);
}

}  // namespace
}  // namespace anymesh
