// Weights without optimizer state, whole models, and frozen parameters: saving and loading.
#include <map>

#include "framework/checkpoint/save/remote_tensors.h"
#include "framework/checkpoint/torch_bridge.h"
#include "framework/comm/agreement.h"
#include "framework/format/layout.h"
#include "framework/format/torch_file.h"
#include "framework/format/whole.h"
#include "framework/zero/memory.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/tiny_run.h"

namespace anymesh {
namespace {

using Weights = SharedFolder;
using WeightsOfProcesses = SharedFolder;
using Frozen = SharedFolder;

const std::string kEmbedding = "tied_modules.embed.word_embeddings.weight";
// Patterns for all parameters of the first of two stages.
const std::vector<std::string> kFirstStage{"embeddings", "^2\\."};

torch::Tensor tensor_of(const TensorRecord& record) {
  torch::Tensor out = torch::empty(record.shape, torch_dtype(record.dtype));
  read_elements(record, 0, out.view(-1), "");
  return out;
}

std::map<std::string, torch::Tensor> weights_in(const fs::path& path) {
  const Checkpoint checkpoint = open_checkpoint(path, 1);
  std::map<std::string, torch::Tensor> weights;
  for (const std::string& name : checkpoint.names())
    weights[name] = tensor_of(checkpoint.parameter(name).weight());
  return weights;
}

void expect_equal(const std::map<std::string, torch::Tensor>& a,
                  const std::map<std::string, torch::Tensor>& b, torch::Dtype dtype) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a) {
    ASSERT_TRUE(b.contains(name)) << name;
    EXPECT_TRUE(torch::equal(tensor.to(dtype), b.at(name).to(dtype))) << name;
  }
}

double eval(TinyRun& run) {
  const int64_t samples = std::exchange(run.engine.state().consumed_train_samples, 0);
  const double loss = run.engine.eval_batch(run.batches());
  run.engine.state().consumed_train_samples = samples;
  return loss;
}

RANKS_TEST_F(Weights, AreSavedWithoutOptimizerAndLoadAnywhere) {
  for (const Topology& mesh : {kData, kSplit, kPipes, kSlices}) {
    for (const int stage : {0, 1, 2, 3}) {
      for (const torch::Dtype dtype : {torch::kFloat, torch::kBFloat16}) {
        TinyRun run(mesh, stage, {.dtype = dtype});
        run.train(2);
        run.engine.save_checkpoint(folder_, {.tag = "full"});
        const SaveOptions options{.tag = "weights", .weights_only = true, .save_16bit_model = true};
        const SaveSize size = run.engine.save_size(folder_, options);
        const fs::path tag = run.engine.save_checkpoint(folder_, options);
        int64_t files = 0, bytes = 0;
        for (const auto& entry : fs::directory_iterator(tag)) {
          if (entry.path().filename() == kManifestFile) continue;
          ++files;
          bytes += static_cast<int64_t>(entry.file_size());
        }
        EXPECT_EQ(size.files(), files);
        EXPECT_EQ(size.bytes(), bytes);
        EXPECT_EQ(size.bytes_here, bytes);
        EXPECT_EQ(size.optimizer_states.files, 0);
        EXPECT_THAT(files_in(tag), Not(Contains(HasSubstr("zero_pp_rank"))));

        const auto masters = weights_in(folder_ / "full");
        expect_equal(weights_in(tag), masters, dtype);
        expect_equal(weights_in(tag / kWeightsFile), masters, dtype);
        for (const auto& [name, value] : read_torch_file(tag / kWeightsFile).entries())
          EXPECT_EQ(torch_dtype(value.as_tensor().dtype), dtype) << name.as_string();

        TinyRun other(mesh == kSplit ? kPipes : kSplit, 3 - stage, {.dtype = dtype});
        EXPECT_REFUSES(other.engine.load_checkpoint(folder_), "without optimizer state",
                       "--finetune");
        other.engine.load_checkpoint(folder_, {.load_module_only = true});
        EXPECT_EQ(other.engine.state().iteration, 0);
        EXPECT_NEAR(eval(other), eval(run), dtype == torch::kFloat ? 1e-5 : 1e-2);
        other.engine.load_checkpoint(folder_, {.load_optimizer_states = false});
        EXPECT_EQ(other.engine.state().iteration, 2);
      }
    }
  }
}

RANKS_TEST_F(Weights, AWholeModelIsOneFile) {
  TinyRun run(kSlices, 3, {.dtype = torch::kHalf, .freeze = {"position"}});
  run.train(1);
  EXPECT_EQ(run.engine.save_16bit_model(folder_), folder_ / "pytorch_model.bin");
  run.engine.save_16bit_model(folder_, "trained.bin", /*exclude_frozen_parameters=*/true);
  const auto all = weights_in(folder_ / "pytorch_model.bin"),
             trained = weights_in(folder_ / "trained.bin");
  EXPECT_EQ(all.at(kEmbedding).sizes(), (std::vector<int64_t>{33, 16}));  // not the padded 34
  EXPECT_EQ(all.size(), trained.size() + 1);
  EXPECT_FALSE(trained.contains("tied_modules.embed.position_embeddings.weight"));
  test_world()->barrier();                 // rank 0 has let go of its lock
  EXPECT_EQ(files_in(folder_).size(), 2);  // nothing beside them
}

// Needs little beyond the run's own memory: the largest parameter, and the part of it on its way.
RANKS_TEST_F(Weights, AreGatheredOneAtATime) {
  for (const bool whole_model : {false, true}) {
    TinyRun run(kData, 3);
    int64_t largest = 0, all = 0;
    for (const ParamSpec& spec : run.model.params()) {
      largest = std::max(largest, static_cast<int64_t>(spec.tensor.numel() * sizeof(float)));
      all += static_cast<int64_t>(spec.tensor.numel() * sizeof(float));
    }
    run.train(1);
    const AllocationGauge saving;
    if (whole_model) {
      run.engine.save_16bit_model(folder_);
    } else {
      run.engine.save_checkpoint(folder_, {.weights_only = true});
    }
    const int64_t texts = 4096, bound = largest + largest / 4 + texts;
    ASSERT_LT(bound, all / 2);
    EXPECT_LE(saving.bytes().peak, bound) << largest;
    if (test_world()->rank() == 0) {
      EXPECT_GE(saving.bytes().peak, largest);
    }
  }
}

RANKS_TEST_F(WeightsOfProcesses, ARankThatCannotWriteReleasesTheOthers) {
  TinyRun run(kData, 3);
  run.engine.save_checkpoint(folder_, {.tag = "before"});
  for (const rlim_t limit : {0, 10'000}) {
    const FileSizeLimit full(test_world()->rank() == 0 ? limit : RLIM_INFINITY);
    EXPECT_REFUSES(run.engine.save_checkpoint(folder_, {.weights_only = true}), "[rank 0]");
    EXPECT_REFUSES(run.engine.save_16bit_model(folder_), "[rank 0]");
  }
  EXPECT_THAT(files_in(folder_), Not(Contains("pytorch_model.bin")));
  EXPECT_THAT(files_in(folder_), Not(Contains("global_step0")));
  run.engine.save_checkpoint(folder_, {.weights_only = true});
  EXPECT_FALSE(weights_in(folder_ / "global_step0").empty());
}

// Truncates the unnamed files that this process has open in a folder, as swap files are.
void truncate_swap_files(const fs::path& folder) {
  for (const auto& link : fs::directory_iterator("/proc/self/fd")) {
    std::error_code gone;  // the descriptor of this very iteration
    const std::string target = fs::read_symlink(link, gone).string();
    if (!gone && target.starts_with(fs::canonical(folder).string()) &&
        target.ends_with("(deleted)"))
      fs::resize_file(link, 0);
  }
}

RANKS_TEST_F(WeightsOfProcesses, ARankWhoseSwapFileCannotBeReadReleasesTheOthers) {
  const CommPtr world = test_world();
  const int64_t count = 10'000, size = world->size(), rank = world->rank();
  const Shape whole{size * count};
  if (rank == 0) fs::create_directory(folder_);
  world->barrier();
  for (const int64_t broken : {0, 3}) {
    const auto swap = std::make_shared<SwapFile>(folder_);
    RemoteTensors gathered(world);
    RemoteTensors::Tensor tensor{torch::kFloat, whole, {}, {}};
    for (int part = 0; part < size; ++part)
      tensor.parts.push_back({part, ShardLayout::make(whole, {}, 1, 0), part * count, count});
    tensor.mine = StateTensor::zeros(count, torch::kFloat, swap);
    const TensorRecord record = gathered.add(std::move(tensor));
    if (rank == broken) truncate_swap_files(folder_);
    EXPECT_THAT(message_of([&] {
                  all_or_none(*world, [&] { gathered.serve([&] { tensor_of(record); }); });
                }),
                HasSubstr("[rank " + std::to_string(broken) + "]"));
  }
}

RANKS_TEST_F(Frozen, TrainsTheOthersAlikeAtEveryStage) {
  for (const Topology& mesh : {kData, kSplit, kPipes}) {
    const bool one_micro_batch = mesh == kData;
    for (const bool recompute : {false, true}) {
      double expected = 0;
      for (const int stage : {0, 1, 2, 3}) {
        TinyRun run(mesh, stage, {.freeze = kFirstStage, .activation_checkpointing = recompute});
        const double before = eval(run);
        const double loss = run.train(3);
        EXPECT_LT(eval(run), before);
        if (stage == 0 || (stage == 2 && !one_micro_batch)) expected = loss;
        EXPECT_EQ(loss, expected) << "stage " << stage;
        if (run.grid.is_first_stage() && mesh.pp_size > 1) {
          EXPECT_TRUE(run.engine.optimizer().groups().empty());
        }
        for (const auto& group : run.engine.optimizer().groups()) {
          for (const ParamSpec& spec : group.params)
            EXPECT_FALSE(spec.name.starts_with("2.") || spec.name == kEmbedding) << spec.name;
        }
      }
    }
  }
}

RANKS_TEST_F(Frozen, WeightsStayAndOthersMove) {
  TinyRun run(kSplit, 3, {.freeze = kFirstStage});
  run.engine.save_checkpoint(folder_, {.tag = "before"});
  run.train(3);
  run.engine.save_checkpoint(folder_, {.tag = "after"});
  const auto before = weights_in(folder_ / "before"), after = weights_in(folder_ / "after");
  ASSERT_EQ(before.size(), after.size());
  for (const auto& [name, tensor] : before) {
    const bool frozen = name.starts_with("2.") || name.starts_with("tied_modules");
    EXPECT_EQ(torch::equal(tensor, after.at(name)), frozen) << name;
  }
}

RANKS_TEST_F(Frozen, ResumesOnItsMeshBitForBitAndOnOthers) {
  for (const Topology& mesh : {kData, kSplit, kPipes, kSlices}) {
    for (const int stage : {0, 1, 2, 3}) {
      const TinyOptions options{.freeze = kFirstStage};
      TinyRun run(mesh, stage, options);
      // Not the initial values, because a load that forgot them would have those too.
      for (const auto& frozen : run.engine.optimizer().frozen()) frozen.weight.tensor().mul_(1.5);
      run.train(2);
      run.engine.save_checkpoint(folder_, {.tag = "global_step2"});
      const double expected = run.train(2);

      TinyRun same(mesh, stage, options);
      EXPECT_THAT(same.engine.load_checkpoint(folder_).report,
                  Not(Contains(HasSubstr("resharding"))));
      EXPECT_EQ(same.train(2), expected) << "stage " << stage;

      for (const bool universal : {false, true}) {
        if (universal && test_world()->rank() == 0)
          convert_to_universal(
              {.input = folder_ / "global_step2", .output = folder_ / "global_step2_universal"},
              {});
        test_world()->barrier();
        const Topology target = mesh == kSplit ? kPipes : kSplit;
        TinyRun other(target, 3 - stage, options);
        other.engine.load_checkpoint(folder_, {.universal = universal});
        EXPECT_NEAR(other.train(2), expected, 1e-5 * expected) << "stage " << stage;
      }
      clear();
    }
  }
}

RANKS_TEST_F(Frozen, MayBeAddedAndRemoved) {
  for (const int stage : {1, 3}) {
    TinyRun run(kPipes, stage, {.freeze = {"^2\\."}});
    run.train(2);
    run.engine.save_checkpoint(folder_);
    const double eval_loss = eval(run);

    TinyRun none(kPipes, stage);
    const auto says = AllOf(HasSubstr("as they were not trained: 2.input_layernorm.bias"),
                            HasSubstr("first update is 0.64 times"), Not(HasSubstr("3.")));
    EXPECT_THAT(message_of([&] { none.engine.load_checkpoint(folder_); }), says);
    EXPECT_THAT(none.engine.load_checkpoint(folder_, {.allow_fresh_moments = true}).report,
                Contains(says));
    EXPECT_NEAR(eval(none), eval_loss, 1e-6);
    EXPECT_EQ(none.engine.optimizer().steps, 2);
    EXPECT_LT(none.train(2), eval_loss);

    TinyRun more(kPipes, stage, {.freeze = {"^2\\.", "embeddings"}});
    EXPECT_THAT(more.engine.load_checkpoint(folder_).report, Not(Contains(HasSubstr("zeros"))));
    EXPECT_NEAR(eval(more), eval_loss, 1e-6);
    EXPECT_EQ(more.engine.optimizer().steps, 2);
  }
}

RANKS_TEST_F(Frozen, MayBeLeftOutOfTheFiles) {
  for (const int stage : {0, 2, 3}) {
    TinyRun base(kData, 0, {.schedule = {.max_lr = 0.02, .decay_samples = 400}});
    base.train(3);
    base.engine.save_checkpoint(folder_, {.tag = "base"});

    const TinyOptions options{.freeze = kFirstStage};
    TinyRun run(kPipes, stage, options);
    run.engine.load_checkpoint(folder_, {.tag = "base", .load_module_only = true});
    run.train(2);
    run.engine.save_checkpoint(folder_, {.tag = "adapter", .exclude_frozen_parameters = true});
    const double expected = run.train(1);
    EXPECT_FALSE(weights_in(folder_ / "adapter").contains(kEmbedding));

    TinyRun other(kPipes, stage, options);
    other.engine.load_checkpoint(folder_, {.tag = "base", .load_module_only = true});
    EXPECT_THAT(other.engine.load_checkpoint(folder_, {.tag = "adapter"}).report,
                Contains(HasSubstrs("keep the values they have", kEmbedding)));
    EXPECT_EQ(other.train(1), expected);

    TinyRun trained(kPipes, stage);
    EXPECT_REFUSES(trained.engine.load_checkpoint(folder_, {.tag = "adapter"}),
                   "missing in the checkpoint", kEmbedding);
  }
}

}  // namespace
}  // namespace anymesh
