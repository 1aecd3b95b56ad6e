// Reads the bytes that `ckpt inspect --parameter` names, and makes the whole tensor of them.

#include <regex>

#include "framework/format/torch_file/elements.h"
#include "tests/tools/ckpt_support.h"

namespace anymesh {
namespace {

std::string follow(const fs::path& path, const std::string& name) {
  std::ostringstream out;
  EXPECT_EQ(follow_parameter(path, name, {.workers = 2, .all = true}, out), 0);
  return out.str();
}

std::vector<int64_t> numbers_in(const std::string& text) {
  std::vector<int64_t> numbers;
  const std::regex number("[0-9]+");
  for (auto at = std::sregex_iterator(text.begin(), text.end(), number);
       at != std::sregex_iterator(); ++at)
    numbers.push_back(std::stoll(at->str()));
  return numbers;
}

// A slice of W as the text has it: where each element of it, counted by rows, is in W. -1: padding.
std::vector<int64_t> places_of_slice(const std::string& text, const Shape& whole) {
  const size_t of_shape = text.find("of shape ");
  const Shape shape = numbers_in(text.substr(of_shape, text.find(']', of_shape) - of_shape));
  size_t dim = 0;
  std::vector<int64_t> index_in_whole;  // by index in the slice, along dim
  const std::regex range(R"(W\[([:, ]*?)([0-9]+):([0-9]+))");
  for (auto at = std::sregex_iterator(text.begin(), text.end(), range);
       at != std::sregex_iterator(); ++at) {
    dim = static_cast<size_t>(std::ranges::count((*at)[1].str(), ','));
    for (int64_t i = std::stoll((*at)[2]); i < std::stoll((*at)[3]); ++i)
      index_in_whole.push_back(i);
  }
  index_in_whole.resize(static_cast<size_t>(shape[dim]), -1);
  const Shape strides = contiguous_strides(whole), own = contiguous_strides(shape);
  std::vector<int64_t> places(static_cast<size_t>(numel(shape)));
  for (size_t i = 0; i < places.size(); ++i) {
    for (size_t d = 0; d < shape.size() && places[i] >= 0; ++d) {
      int64_t index = static_cast<int64_t>(i) / own[d] % shape[d];
      if (d == dim) index = index_in_whole[static_cast<size_t>(index)];
      places[i] = index < 0 ? -1 : places[i] + index * strides[d];
    }
  }
  return places;
}

std::vector<std::byte> read_range(const fs::path& file, uint64_t offset, uint64_t count) {
  std::vector<char> bytes(count);
  std::ifstream in(file, std::ios::binary);
  in.seekg(static_cast<std::streamoff>(offset));
  in.read(bytes.data(), static_cast<std::streamsize>(count));
  EXPECT_EQ(in.gcount(), static_cast<std::streamsize>(count)) << file;
  const auto raw = std::as_bytes(std::span(bytes));
  return {raw.begin(), raw.end()};
}

// Expects the bytes to lie in the record of this name.
void expect_in_record(const fs::path& file, const std::string& record, uint64_t offset,
                      uint64_t count) {
  const ZipReader zip(file);
  for (const ZipReader::Record& each : zip.records()) {
    if (!each.name.ends_with("/" + record)) continue;
    EXPECT_LE(each.offset, offset);
    EXPECT_LE(offset + count, each.offset + each.size);
    return;
  }
  ADD_FAILURE() << file << " has no " << record;
}

// The elements of a state, put together as the text says.
class Assembled {
 public:
  Assembled(const std::string& text, const std::string& state, const TensorRecord& tensor)
      : size_(element_size(tensor.dtype)),
        bytes_(tensor.nbytes()),
        seen_(static_cast<size_t>(tensor.numel())) {
    std::istringstream lines(text);
    const std::regex slice(R"(  tp [0-9]+ has (S[0-9]+) = (.*))"),
        heading(R"((\w+): \w+(?:, in the file (\w+))?)"),
        row(R"(  (?:pp.*|tp.*|)\b(S[0-9]+|W)\.flat\[(\d+):(\d+)\] +(\S+) +(\S+) +(\d+) +(\d+) *)");
    std::smatch found;
    std::string current;
    for (std::string line; std::getline(lines, line);) {
      if (std::regex_match(line, found, slice)) {
        slices_[found[1]] = places_of_slice(found[2], tensor.shape);
      } else if (std::regex_match(line, found, heading)) {
        current = found[1];
        stored_ = dtype_of_name(found[2].str());
      } else if (current == state && std::regex_match(line, found, row)) {
        add(found, std::stoll(found[2]), std::stoll(found[3]));
      }
    }
  }

  void expect_equal(const TensorRecord& tensor, bool copies_differ) const {
    EXPECT_EQ(differing_ > 0, copies_differ);
    EXPECT_EQ(std::ranges::count(seen_, false), 0);
    EXPECT_EQ(bytes_, read_bytes(tensor));
  }

  static inline fs::path folder;

 private:
  void add(const std::smatch& row, int64_t begin, int64_t end) {
    const uint64_t offset = std::stoull(row[6]), count = std::stoull(row[7]);
    const fs::path file = folder / row[4].str();
    if (row[5] != "-") expect_in_record(file, row[5], offset, count);
    std::vector<std::byte> bytes = read_range(file, offset, count);
    if (stored_) {
      std::vector<float> values(static_cast<size_t>(end - begin));
      to_floats(*stored_, bytes, values);
      const auto raw = std::as_bytes(std::span(values));
      bytes.assign(raw.begin(), raw.end());
    }
    ASSERT_EQ(bytes.size(), static_cast<uint64_t>(end - begin) * size_);
    for (int64_t i = begin; i < end; ++i) {
      const int64_t place = row[1] == "W" ? i : slices_.at(row[1]).at(static_cast<size_t>(i));
      if (place >= 0)
        put(static_cast<size_t>(place), &bytes[static_cast<size_t>(i - begin) * size_]);
    }
  }

  // Counts the copies of an element that differ from the first.
  void put(size_t place, const std::byte* element) {
    std::byte* const to = &bytes_[place * size_];
    if (seen_[place])
      differing_ += std::memcmp(to, element, size_) != 0;
    else
      std::memcpy(to, element, size_);
    seen_[place] = true;
  }

  uint64_t size_;
  std::vector<std::byte> bytes_;
  std::vector<bool> seen_;
  int64_t differing_ = 0;
  std::optional<DType> stored_;
  std::map<std::string, std::vector<int64_t>> slices_;
};

// Megatron's last stage has position embeddings that it never uses, as part of the tied layer.
bool is_unused_copy(const std::string& text) {
  return text.find("position_embeddings.weight: ") != std::string::npos &&
         text.find(" pipeline stages have a copy") != std::string::npos;
}

// Follows every parameter. Returns how many states were made.
size_t expect_all(const fs::path& path) {
  const Checkpoint whole = open_checkpoint(path, 2);
  Assembled::folder = fs::is_directory(whole.path) ? whole.path : whole.path.parent_path();
  size_t states = 0;
  for (const std::string& name : whole.names()) {
    SCOPED_TRACE(path.string() + " " + name);
    const std::string text = follow(path, name);
    const SavedParameter parameter = whole.parameter(name);
    for (const auto& [state, tensor] : parameter.states) {
      Assembled(text, state, tensor).expect_equal(tensor, is_unused_copy(text));
      ++states;
    }
    if (::testing::Test::HasFailure()) break;
  }
  return states;
}

class Follow : public Ckpt, public ::testing::WithParamInterface<std::string> {};

TEST_P(Follow, PrintedBytesMakeTheWholeTensor) { EXPECT_GE(expect_all(tag_of(GetParam())), 30u); }

INSTANTIATE_TEST_SUITE_P(Stages, Follow,
                         ::testing::Values("z0-fp32-dp2", "z0-fp32-tp2dp2", "z1-fp32-dp2",
                                           "z1-bf16-dp2", "z1-bf16-tp1pp1dp2", "z1-bf16-tp2pp2dp1",
                                           "z1-bf16-tp2pp1dp1-llama", "z2-bf16-dp3",
                                           "z2-bf16-dp2-frozen", "z2-bf16-tp2dp2-nopipe",
                                           "z2-fp16-dp2", "z3-bf16-dp2", "z3-bf16-dp2-nopipe",
                                           "z3-fp32-dp3-frozen"),
                         test_name);

TEST_F(Ckpt, FollowsParametersOfUniversalFoldersAndWeights) {
  for (const char* name : {"z1-fp32-tp2pp2dp1", "z2-bf16-dp3", "z3-fp32-dp3-frozen"})
    EXPECT_GT(expect_all(fixture(name) / "universal"), 30u);
  EXPECT_GT(expect_all(exported(kMesh)), 30u);
  write_safetensors(folder_ / "model.safetensors", {{"a.weight", float_tensor({2}, {1, 2})},
                                                    {"b.weight", float_tensor({3}, {3, 4, 5})}});
  EXPECT_EQ(expect_all(folder_ / "model.safetensors"), 2u);
}

TEST_F(Ckpt, FollowsParametersOfThisTrainer) {
  for (const char* format : {"0", "1"})
    for (const char* name : {"pipeline", "sharded"})
      EXPECT_GE(expect_all(fixture(format) / name), 30u);
}

TEST_F(Ckpt, FollowsRarerKinds) {
  for (const char* name : {"pipeline-tied", "pipeline-frozen", "z0-bf16-order", "amsgrad",
                           "bf16-masters", "round-robin", "z0-frozen"})
    EXPECT_GE(expect_all(rare_case(name)), 4u);
}

TEST_F(Ckpt, FollowPrintsRanksSlicesAndACommand) {
  const std::string text = follow(tag_of(kMesh), "3.mlp.dense_4h_to_h.weight");
  for (const char* part :
       {"W = 3.mlp.dense_4h_to_h.weight: float32 tensor of shape [64, 256], 16384 elements\n",
        "  tp 1 has S1 = W[:, 128:256], of shape [64, 128]\n",
        "  pp 0, tp 1, dp 0  S1.flat[0:8192]", "\nexp_avg_sq: float32\n",
        "iflag=skip_bytes,count_bytes"})
    EXPECT_THAT(text, HasSubstr(part)) << part << "\n" << text;
}

TEST_F(Ckpt, FollowNamesNearParameters) {
  const auto message = [&](const std::string& name) {
    return message_of([&] { follow(tag_of(kMesh), name); });
  };
  EXPECT_THAT(message("3.mlp.dense_4h_to_h.weigth"),
              HasSubstr("; it has 3.mlp.dense_4h_to_h.weight, "));
  EXPECT_THAT(message("word_embeddings"), HasSubstr("tied_modules.embed.word_embeddings.weight"));
  const std::string none = message("\x1b nothing of the kind");
  EXPECT_TRUE(none.ends_with("among its 52")) << none;
}

}  // namespace
}  // namespace anymesh
