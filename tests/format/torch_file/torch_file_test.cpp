#include "framework/format/torch_file/torch_file.h"

#include "framework/format/io/crc32.h"
#include "framework/format/layout/names.h"
#include "framework/format/torch_file/zip.h"
#include "tests/support/allocation_count.h"
#include "tests/support/fixtures.h"

namespace anymesh {
namespace {

using TorchFile = TempFolder;

std::vector<fs::path> torch_files(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.path().extension() == ".pt") files.push_back(entry.path());
  }
  return files;
}

TEST_F(TorchFile, FilesOfDeepSpeedRoundTrip) {
  size_t count = 0;
  for (const char* name : {"z0-fp32-dp2", "z1-bf16-dp2", "z2-bf16-dp3", "z2-bf16-dp2-frozen",
                           "z3-fp32-dp3-frozen", "z1-bf16-tp2pp2dp1", "z1-bf16-tp1pp1dp2"}) {
    for (const auto& path : torch_files(fixture(name))) {
      const Value value = read_torch_file(path);
      const auto copy = folder_ / "copy.pt";
      write_torch_file(copy, value);
      ASSERT_EQ(read_torch_file(copy), value) << path;
      ++count;
    }
  }
  EXPECT_GT(count, 800u);
}

TEST_F(TorchFile, ReadsMetadataOfARealCheckpoint) {
  const auto tag = fixture("z1-bf16-tp2pp2dp1") / "checkpoint" / tag_folder(10);
  const Value model = read_torch_file(tag / model_states_file(3));
  EXPECT_EQ(model.at(keys::kIteration).as_int(), 10);
  EXPECT_EQ(model.at(keys::kParallelDimensions).at(keys::kTpDegree).as_int(), 2);
  EXPECT_TRUE(model.at(keys::kArgs).is_object("Namespace"));
  EXPECT_EQ(model.at(keys::kArgs).at("params_dtype"), Value::dtype(DType::kBFloat16));
  EXPECT_EQ(model.at(keys::kArgs).at("hidden_size").as_int(), 64);
  const Value shapes = model.at(keys::kParamShapes);
  EXPECT_EQ(shapes.at(0).entries().front().first.as_string(),
            "tied_modules.embed.word_embeddings.weight");
  EXPECT_EQ(shapes.at(0).entries().front().second.as_shape(), (Shape{256, 64}));
  const Value numpy_state = model.at("rng_state").at(0).at("np_rng_state");
  EXPECT_EQ(numpy_state.at(1).as_object().state->at(4).as_bytes().size(), 624u * 4);
}

// A model-states file of ZeRO 3 has little in it but names, here three times 50,000.
TEST_F(TorchFile, MetadataOfManyParametersIsReadInLittleMemory) {
  std::vector<Value::Entry> module, shapes, fragments;
  for (int64_t i = 0; i < 50'000; ++i) {
    const std::string name = "model.decoder.layers." + std::to_string(i) + ".mlp.up_proj.weight";
    module.emplace_back(name, float_tensor({0}, {}));
    shapes.emplace_back(name, Value::size(Shape{64, 64}));
    fragments.emplace_back(name, fragment_address(4096, 4096 * i));
  }
  const Value state = Value::dict(
      {{keys::kModule, Value::ordered_dict(std::move(module))},
       {keys::kParamShapes, Value::list({Value::ordered_dict(std::move(shapes))})},
       {keys::kParamSliceMappings, Value::list({Value::ordered_dict(std::move(fragments))})}});
  const auto path = folder_ / zero3_model_states_file(0, 0);
  const auto size = static_cast<int64_t>(write_torch_file(path, state).bytes);
  const PeakAllocation peak;
  const Value read = read_torch_file(path);
  EXPECT_LE(peak.bytes(), 2 * size + (64 << 20));
  EXPECT_EQ(read, state);
}

TEST_F(TorchFile, TiedTensorsShareOneStorage) {
  const TensorRecord tied = float_tensor({2, 2}, {1, 2, 3, 4});
  const auto result = write_torch_file(
      folder_ / "t.pt", Value::dict({{"a", tied}, {"b", tied}, {"c", float_tensor({0}, {})}}));
  EXPECT_EQ(result.bytes, fs::file_size(folder_ / "t.pt"));
  const std::string content = read_file(folder_ / "t.pt");
  EXPECT_EQ(result.crcs[0], crc32(std::as_bytes(std::span(content))));
  const ZipReader zip(folder_ / "t.pt");
  EXPECT_NE(zip.find("t/data/1"), nullptr);
  EXPECT_EQ(zip.find("t/data/2"), nullptr);
  const Value read = read_torch_file(folder_ / "t.pt");
  EXPECT_EQ(read.at("a").as_tensor().bytes, read.at("b").as_tensor().bytes);
  EXPECT_EQ(read.at("c").as_tensor().numel(), 0);
}

// DeepSpeed saves the rows of a vocabulary as a view that drags the padding along. We write the
// view alone.
TEST_F(TorchFile, AViewIsWrittenWithoutItsStorage) {
  TensorRecord view = float_tensor({2}, {3, 4});
  view.bytes = std::make_shared<SubRange>(bytes_of(std::vector<float>(1000, 3)), 40, 8);
  write_torch_file(folder_ / "t.pt", view);
  EXPECT_EQ(ZipReader(folder_ / "t.pt").find("t/data/0")->size, 8u);
}

TEST_F(TorchFile, AllDtypesKeepTheirBytes) {
  for (const DType dtype :
       {DType::kFloat64, DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kInt64,
        DType::kInt32, DType::kInt16, DType::kInt8, DType::kUInt8, DType::kBool}) {
    const auto bytes =
        std::make_shared<OwnedBytes>(std::vector<std::byte>(6 * element_size(dtype), std::byte{1}));
    const Value tensor = TensorRecord{dtype, {2, 3}, dtype == DType::kFloat32, bytes};
    write_torch_file(folder_ / "t.pt", tensor);
    EXPECT_EQ(read_torch_file(folder_ / "t.pt"), tensor) << dtype_name(dtype);
  }
}

TEST_F(TorchFile, LargeTensorsAreStreamed) {
  std::vector<float> values(3 << 20);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  write_torch_file(folder_ / "t.pt", float_tensor({3 << 20}, values));
  EXPECT_EQ(floats(read_torch_file(folder_ / "t.pt").as_tensor()), values);
}

TEST_F(TorchFile, RefusesATensorOfTheWrongSize) {
  EXPECT_THROW(write_torch_file(folder_ / "t.pt", float_tensor({3}, {1, 2})), std::logic_error);
}

TEST_F(TorchFile, OtherFilesAreRefusedByName) {
  const auto path = folder_ / "t.pt";
  write_file(path, "hello");
  EXPECT_REFUSES(read_torch_file(path), "not a file of torch.save");
  write_zip(path, {{"t/other", "x"}});
  EXPECT_REFUSES(read_torch_file(path), "no data.pkl");
  EXPECT_REFUSES(read_torch_file(folder_ / "absent.pt"), "absent.pt");
}

TEST_F(TorchFile, ErrorsInsideAFileNameItAndTheKeys) {
  const auto path = folder_ / "t.pt";
  write_torch_file(path, Value::dict({{"a", 1}}));
  EXPECT_EQ(message_of([&] { read_torch_file(path).at("a").as_string(); }),
            path.string() + ": ['a']: expected a string, found 1");
}

}  // namespace
}  // namespace anymesh
