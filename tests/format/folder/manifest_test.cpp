#include "framework/format/folder/manifest.h"

#include <fstream>

#include "framework/format/layout/names.h"
#include "framework/format/torch_file/torch_file.h"
#include "tests/support/message_of.h"
#include "tests/support/temp_folder.h"

namespace anymesh {
namespace {

constexpr const char* kVersion1 =
    R"({"format": "anymesh checkpoint", "version": 1, "tag": "global_step7",
  "iteration": 7, "files": [{"name": "a.pt", "bytes": 5, "crc32": 907060870, "host": "node3"}]})";

TEST(ManifestText, VersionOneIsReadForEver) {
  const Manifest manifest = Manifest::from_json(kVersion1, "here");
  EXPECT_EQ(manifest.tag, "global_step7");
  EXPECT_EQ(manifest.iteration, 7);
  ASSERT_EQ(manifest.files.size(), 1u);
  EXPECT_EQ(manifest.files[0].name, "a.pt");
  EXPECT_EQ(manifest.files[0].bytes, 5u);
  EXPECT_EQ(manifest.files[0].crc, 907060870u);
  EXPECT_EQ(manifest.files[0].host, "node3");
  EXPECT_EQ(Manifest::from_json(manifest.to_json(), "").to_json(), manifest.to_json());
}

TEST(ManifestText, NoChangedByteIsTakenForAnotherContent) {
  const std::string text = Manifest::from_json(kVersion1, "").to_json();
  for (size_t at = 0; at < text.size(); ++at)
    for (const char bit : {1, 2, 4, 8, 16, 32, 64}) {
      std::string changed = text;
      changed[at] = static_cast<char>(changed[at] ^ bit);
      try {
        EXPECT_EQ(Manifest::from_json(changed, "").to_json(), text) << at;
      } catch (const std::exception&) {
      }
    }
}

TEST(ManifestText, RefusesWhatIsNone) {
  const auto error_of = [](std::string text, const std::string& from, const std::string& to) {
    text.replace(text.find(from), from.size(), to);
    return message_of([&] { Manifest::from_json(text, "folder/manifest.json"); });
  };
  EXPECT_THAT(error_of(kVersion1, "1,", "2,"), HasSubstrs("folder/manifest.json", "version 2"));
  EXPECT_THROW(Manifest::from_json(R"({"format": "anymesh checkpoint", "version": 2})", ""),
               Unreadable);
  EXPECT_THAT(error_of(kVersion1, "1,", "0,"), HasSubstr("version 0"));
  EXPECT_THAT(error_of(kVersion1, "anymesh", "other"), HasSubstr("'format'"));
  EXPECT_THAT(error_of(kVersion1, "a.pt", "../a.pt"), HasSubstr("no file in its folder"));
  EXPECT_THAT(error_of(kVersion1, "5,", "-5,"), HasSubstr("not a manifest"));
  EXPECT_THAT(error_of(kVersion1, "907060870", "\"x\""), HasSubstr("not a manifest"));
  EXPECT_THAT(error_of(kVersion1, "}", "\xA5"), HasSubstr("not a manifest"));
  EXPECT_REFUSES(Manifest::from_json(std::string(100'000, '['), "deep"), "not a manifest");
  const std::string deep = std::string(200'000, '[') + std::string(200'000, ']');
  EXPECT_THAT(error_of(kVersion1, "907060870", deep), HasSubstr("not a manifest"));
}

class ManifestFiles : public TempFolder {
 protected:
  ManifestFiles() {
    const TensorRecord tensor{
        DType::kFloat32, {1000}, false, std::make_shared<OwnedBytes>(std::vector<std::byte>(4000))};
    const WriteResult written = write_torch_file(file_, Value::dict({{"x", tensor}}));
    manifest_.files.push_back({"x.pt", written.bytes, written.crcs[0], "node3"});
  }

  std::string sizes() const { return size_damage(folder_, manifest_.files); }
  std::string checksums() const { return checksum_damage(folder_, manifest_.files); }

  fs::path file_ = folder_ / "x.pt";
  Manifest manifest_;
};

TEST_F(ManifestFiles, IntactOnesHaveNoDamage) {
  EXPECT_EQ(sizes(), "");
  EXPECT_EQ(checksums(), "");
  EXPECT_FALSE(read_manifest(folder_));
  std::ofstream(folder_ / kManifestFile) << manifest_.to_json();
  EXPECT_EQ(read_manifest(folder_)->to_json(), manifest_.to_json());
}

TEST_F(ManifestFiles, SaysWhatIsWrongWhereAndWhoWroteIt) {
  const uint64_t size = fs::file_size(file_);
  {
    std::fstream stream(file_, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekp(static_cast<std::streamoff>(size / 2));
    stream.put('\xA5');
  }
  EXPECT_EQ(sizes(), "");
  EXPECT_THAT(checksums(), HasSubstrs("x.pt: its checksum differs from the one written",
                                      "record x/data/0 at offset", "(written on node3)"));
  fs::resize_file(file_, 100);
  EXPECT_THAT(sizes(), HasSubstrs("has 100 bytes, " + std::to_string(size), "node3"));
  fs::remove(file_);
  EXPECT_THAT(sizes(), HasSubstr("x.pt: is missing (written on node3)"));
  EXPECT_EQ(checksums(), "");  // the missing file is not reported twice
}

}  // namespace
}  // namespace anymesh
