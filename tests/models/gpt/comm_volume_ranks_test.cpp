// Compares the traffic of one training step, counted in the communicator, with the closed form of
// docs/scaling.md, and in processes with the bytes that MPI was given to send.
#include <mpi.h>

#include "framework/pipeline/pipeline_engine.h"
#include "framework/zero/zero_optimizer.h"
#include "models/gpt/gpt_comm_form.h"
#include "models/gpt/gpt_model.h"
#include "tests/support/gpt_flags.h"
#include "tests/support/ranks.h"

namespace {
thread_local int64_t mpi_bytes = 0;  // handed to MPI by this rank

int64_t bytes_of(int count, MPI_Datatype type) {
  int size = 0;
  PMPI_Type_size(type, &size);
  return int64_t{count} * size;
}
}  // namespace

// Intercept the library's calls, as MPI's profiling interface allows.
extern "C" int MPI_Isend(const void* data, int count, MPI_Datatype type, int to, int tag,
                         MPI_Comm comm, MPI_Request* request) {
  mpi_bytes += bytes_of(count, type);
  return PMPI_Isend(data, count, type, to, tag, comm, request);
}
extern "C" int MPI_Ibcast(void* data, int count, MPI_Datatype type, int root, MPI_Comm comm,
                          MPI_Request* request) {
  mpi_bytes += bytes_of(count, type);
  return PMPI_Ibcast(data, count, type, root, comm, request);
}

namespace anymesh {
namespace {

constexpr int kRows = 2;  // per micro-batch: b
constexpr int kBlocks = 8;

struct VolumeCase {
  Topology mesh;
  int zero_stage = 0, micro_batches = 1;
  bool recompute = false, sequence = false;
  bool modules = false;  // recompute parts of layers, if not whole ones
  bool llama = false;    // untied, no biases, RMSNorm, SwiGLU, rotary; bf16
  bool experts = false;  // in every second layer, beside --llama
  int num_layers = 5;
  bool same_bits = false;
  bool bf16_sums = false;  // sends gradients in bf16, but exact ones
  bool sends_bf16() const { return bf16_sums && !same_bits; }
  bool spread() const { return mesh.ep_size > 1 || mesh.whole_experts; }
};

std::string describe(const VolumeCase& k) {
  return c10::str(
      describe(k.mesh), ", ZeRO ", k.zero_stage, ", ", k.micro_batches, " micro-batches",
      k.recompute ? ", recompute"
      : k.modules ? ", recompute modules"
                  : "",
      k.sequence ? ", sequence" : "", k.llama ? ", llama" : ", gpt", k.experts ? ", experts" : "",
      k.same_bits ? ", same bits" : "", k.sends_bf16() ? ", gradients in bf16" : "");
}

GptConfig config_of(const VolumeCase& k) {
  GptConfig c;
  c.num_layers = k.num_layers;
  c.hidden_size = 16;
  c.num_attention_heads = 4;
  c.seq_length = 8;
  c.max_position_embeddings = 9;
  c.make_vocab_size_divisible_by = 3;
  c.vocab_size = 17;
  std::string flags;
  if (k.llama)
    flags +=
        "--untie-embeddings-and-output-weights --use-rotary-position-embeddings --swiglu "
        "--disable-bias-linear --embed-layernorm --normalization rmsnorm --ffn-hidden-size 12 ";
  if (k.experts)
    flags +=
        "--moe-aux-loss-coeff 0.1 --moe-layer-freq 2 --moe-ffn-hidden-size 8 --qk-layernorm "
        "--moe-shared-expert-intermediate-size 8 --moe-shared-expert-gate --num-experts ";
  if (k.experts)
    flags += k.spread() ? "4 --moe-router-score-function sigmoid --moe-router-enable-expert-bias "
                        : "3 ";
  if (k.experts && k.micro_batches > 1) flags += "--qk-layernorm-all-heads ";
  if (k.modules && !k.recompute) c.recompute_modules = {"mlp", "moe", "core_attn"};
  return with_flags(c, flags);
}

struct Measured {
  CommCounts counts;      // summed over the dp ranks of this stage, and over tp for spread experts
  CommCounts everywhere;  // summed over all ranks
  int64_t wire = 0;       // handed to MPI by all ranks
  int64_t params = 0;     // on this rank: P
};

CommCounts summed(const CommCounts& counts, const CommPtr& group) {
  CommCounts sums = counts;
  for (auto& [name, traffic] : sums.groups) {
    for (Traffic& t : traffic) {
      const torch::Tensor both = torch::tensor({t.calls, t.bytes}, torch::kLong);
      group->all_reduce(both);
      t = {both[0].item<int64_t>(), both[1].item<int64_t>()};
    }
  }
  return sums;
}

// Moves what Engine moves for a step's loss.
void mean_over_dp(const PipelineEngine& engine, const std::vector<torch::Tensor>& losses,
                  const ProcessGrid& grid) {
  const torch::Tensor loss = torch::full({1}, engine.mean_of(losses), torch::kDouble);
  if (grid.same_bits.blocks == 0) return grid.dp->all_reduce(loss);
  if (!losses.empty()) {
    const torch::Tensor mine = torch::stack(losses).to(torch::kDouble);
    grid.dp->all_gather(torch::empty({grid.topology.dp_size, mine.numel()}, mine.options()), mine);
  }
  engine.mean_of(losses);
}

Measured step(const VolumeCase& k, const GptConfig& c, const CommPtr& world) {
  CommCounts counts;
  ProcessGrid grid(world, k.mesh, &counts);
  grid.same_bits = SameBits::of(k.same_bits ? kBlocks : 0, c.seq_length);
  GptModel model(c, grid, k.llama ? torch::kBFloat16 : torch::kFloat, kRows, 7, k.sequence);
  ZeroOptimizer optimizer(model.params(), grid,
                          {.stage = k.zero_stage, .grad_reduce_in_bf16 = k.sends_bf16()});
  model.runner().set_observer(&optimizer);
  model.runner().set_recompute(k.recompute);
  PipelineEngine engine(model, grid);
  const torch::Tensor tokens = torch::arange(kRows * c.seq_length).view({kRows, -1}) % c.vocab_size;
  std::vector<MicroBatch> batches;
  for (int64_t i = 0; i < k.micro_batches; ++i)
    batches.push_back({tokens, tokens, {.seed = 1, .samples = {2 * i, 2 * i + 1}}});

  counts.reset();
  mpi_bytes = 0;
  optimizer.begin_step(1, kRows * k.micro_batches * k.mesh.dp_size);
  mean_over_dp(engine, engine.forward_backward(batches, 1.0 / k.micro_batches), grid);
  optimizer.step(1e-3, optimizer.reduce_gradients());
  model.after_step(/*skipped=*/false);
  Measured measured{.counts = counts};

  torch::Tensor sent = torch::full({1}, mpi_bytes, torch::kLong);
  world->all_reduce(sent);
  measured.wire = sent.item<int64_t>();
  measured.everywhere = summed(measured.counts, world);
  const int tp_rank = k.spread() ? 0 : grid.coord.tp;
  measured.counts =
      summed(measured.counts, world->split(k.mesh.rank_of({grid.coord.pp, 0, tp_rank}), 0));
  for (const ParamSpec& spec : model.params()) measured.params += spec.tensor.numel();
  return measured;
}

StepShape shape_of(const VolumeCase& k) {
  return {.mesh = k.mesh,
          .zero_stage = k.zero_stage,
          .micro_batches = k.micro_batches,
          .micro_batch_size = kRows,
          .element_bytes = k.llama ? 2 : 4,
          .sequence_parallel = k.sequence,
          .activation_checkpointing = k.recompute,
          .same_bits = k.same_bits ? kBlocks : 0,
          .gradient_bytes = k.sends_bf16() ? 2 : 0};
}

// Returns the bytes that all ranks hand to MPI for these payloads.
int64_t wire_bytes(const CommCounts& everywhere, const Topology& mesh) {
  const std::map<std::string, int> sizes = {{"world", mesh.world_size()},
                                            {"tp", mesh.tp_size},
                                            {"pp", mesh.pp_size},
                                            {"dp", mesh.dp_size},
                                            {"model", mesh.tp_size * mesh.pp_size},
                                            {"ep", mesh.ep_size},
                                            {"edp", mesh.edp_size()},
                                            {"embedding", 2}};
  int64_t sum = 0;
  for (const auto& [group, traffic] : everywhere.groups) {
    const int64_t n = sizes.at(group);
    sum += 2 * (traffic[kAllReduce].bytes / n) * (n - 1) +
           (traffic[kReduceScatter].bytes + traffic[kAllGather].bytes) / n * (n - 1) +
           traffic[kExchange].bytes + traffic[kBroadcast].bytes;
  }
  return sum;
}

// `expected` is of one tp rank, `actual` the sum over `tp_ranks`.
void expect_equal(const CommCounts& actual, CommForm expected, int tp_ranks) {
  for (const auto& [group, traffic] : actual.groups) {
    for (size_t verb = 0; verb < kVerbs; ++verb) {
      const CommSum should = expected[{group, kVerbNames[verb]}];
      EXPECT_EQ(traffic[verb].calls, should.calls * tp_ranks) << group << " " << kVerbNames[verb];
      EXPECT_EQ(traffic[verb].bytes, should.bytes * tp_ranks) << group << " " << kVerbNames[verb];
      expected.erase({group, kVerbNames[verb]});
    }
  }
  for (const auto& [key, sum] : expected)
    ADD_FAILURE() << "no such traffic: " << key.first << " " << key.second;
}

// Sets the options of one of twelve choices. Returns false if the mesh cannot have them.
bool choose(int choice, VolumeCase& k) {
  k.recompute = choice & 1, k.sequence = choice & 2, k.llama = choice >= 4, k.experts = choice >= 8;
  k.modules = (choice + k.zero_stage) % 4 >= 2;
  k.bf16_sums = k.llama && k.zero_stage > 0 && choice % 3 == 0;
  k.micro_batches = 1 + (choice + choice / 3 + k.zero_stage) % 3;
  if (k.mesh.chunks > 1) {
    k.micro_batches *= k.mesh.pp_size;
    k.num_layers = 2 * k.mesh.pp_size * k.mesh.chunks;
  }
  return !k.spread() || (k.experts && (k.sequence || !k.mesh.whole_experts));
}

Measured expect_closed_form(const VolumeCase& k, const CommPtr& world) {
  const GptConfig c = config_of(k);
  const Measured measured = step(k, c, world);
  expect_equal(measured.counts, comm_form(c, shape_of(k), k.mesh.coord_of(world->rank()).pp),
               k.spread() ? k.mesh.tp_size : 1);
  return measured;
}

class CommVolume : public testing::TestWithParam<std::tuple<Topology, int>> {};
struct CommVolumeRank : RankFixtureOf<CommVolume> {};

RANKS_TEST_P(CommVolume, EqualsTheClosedForm) {
  VolumeCase k{.mesh = std::get<0>(GetParam()), .zero_stage = std::get<1>(GetParam())};
  const CommPtr world = first_ranks(k.mesh.world_size());
  if (!world) return;
  for (int choice = 0; choice < 12; ++choice) {
    // Half of them: any three of stage, recomputation, sequence and model still have all values.
    if (!choose(choice, k) || (choice / 4 + k.zero_stage + k.recompute + k.sequence) % 2) continue;
    for (k.same_bits = false;; k.same_bits = true) {
      SCOPED_TRACE(describe(k));
      expect_closed_form(k, world);
      if (k.same_bits || k.experts) break;
    }
  }
}

// The payloads say how much MPI sends, so each mesh has one case. Together these have every
// stage and choice.
RANKS_TEST(CommVolumeOfProcesses, MpiSendsThePayloads) {
  struct {
    Topology mesh;
    int zero_stage, choice;
  } const cases[] = {
      {{1, 2, 1, 2}, 0, 8},        {{2, 2, 2, 2}, 1, 11},
      {{1, 4, 1, 2}, 2, 9},        {{1, 2, 2, 4, true}, 3, 10},
      {{1, 4, 2, 2, true}, 1, 10}, {{1, 1, 1}, 0, 0},
      {{1, 1, 4}, 3, 6},           {{1, 3, 1}, 2, 5},
      {{3, 1, 1}, 1, 1},           {{1, 2, 2}, 1, 3},
      {{2, 2, 2}, 3, 7},           {{4, 2, 1}, 0, 4},
      {{1, 1, 4}, 0, 2},           {{.pp_size = 2, .dp_size = 2, .chunks = 3}, 2, 5}};
  for (const auto& [mesh, zero_stage, choice] : cases) {
    VolumeCase k{.mesh = mesh, .zero_stage = zero_stage};
    EXPECT_TRUE(choose(choice, k));
    const CommPtr world = first_ranks(mesh.world_size());
    if (!world) continue;
    SCOPED_TRACE(describe(k));
    const Measured measured = expect_closed_form(k, world);
    // A rank hands MPI those rows alone that go to others.
    const int64_t rows = measured.everywhere.groups.at("ep")[kAllToAll].bytes;
    EXPECT_GE(measured.wire, wire_bytes(measured.everywhere, mesh) + (rows > 0 ? 1 : 0));
    EXPECT_LE(measured.wire, wire_bytes(measured.everywhere, mesh) + rows);
  }
}

std::string name_of_mesh(const testing::TestParamInfo<std::tuple<Topology, int>>& info) {
  const auto& [mesh, zero_stage] = info.param;
  return c10::str("pp", mesh.pp_size, "dp", mesh.dp_size, "tp", mesh.tp_size, "zero", zero_stage,
                  mesh.chunks > 1 ? c10::str("chunks", mesh.chunks) : "",
                  mesh.ep_size > 1 ? c10::str("ep", mesh.ep_size) : "",
                  mesh.whole_experts ? "whole" : "");
}
INSTANTIATE_TEST_SUITE_P(
    Experts, CommVolume,
    testing::Combine(testing::Values(Topology{1, 2, 1, 2}, Topology{2, 2, 2, 2},
                                     Topology{1, 4, 1, 2}, Topology{1, 2, 2, 4, true},
                                     Topology{1, 4, 2, 2, true}),
                     testing::Values(0, 1, 2, 3)),
    name_of_mesh);
INSTANTIATE_TEST_SUITE_P(Meshes, CommVolume,
                         testing::Combine(testing::Values(Topology{1, 1, 1}, Topology{1, 1, 4},
                                                          Topology{1, 3, 1}, Topology{3, 1, 1},
                                                          Topology{1, 2, 2}, Topology{2, 2, 2},
                                                          Topology{4, 2, 1}),
                                          testing::Values(0, 1, 2, 3)),
                         name_of_mesh);

INSTANTIATE_TEST_SUITE_P(
    Chunks, CommVolume,
    testing::Combine(testing::Values(Topology{.pp_size = 2, .dp_size = 2, .chunks = 2},
                                     Topology{.pp_size = 4, .tp_size = 2, .chunks = 2}),
                     testing::Values(0, 1, 2, 3)),
    name_of_mesh);

// The leading terms for a model without padding, as the papers give them.
struct PaperTerms : RankFixture {
  Measured measure(const VolumeCase& k, const CommPtr& world) {
    GptConfig c = config_of(k);
    c.vocab_size = 16;
    c.max_position_embeddings = 8;
    c.make_vocab_size_divisible_by = 1;
    c.untie_embeddings_and_output_weights = true;
    return step(k, c, world);
  }
};

// ZeRO (arXiv:1910.02054, section 7) moves 2, 2, 1 + m, 3m times the parameters, with recompute or
// not.
RANKS_TEST_F(PaperTerms, DataParallelVolumeInParameters) {
  const Topology mesh{.dp_size = 4};
  const CommPtr world = first_ranks(4);
  if (!world) return;
  for (const bool recompute : {false, true}) {
    for (const int m : {1, 3}) {
      const int expected[] = {2, 2, 1 + m, 3 * m};
      for (int stage = 0; stage < 4; ++stage) {
        const Measured measured = measure(
            {.mesh = mesh, .zero_stage = stage, .micro_batches = m, .recompute = recompute}, world);
        const auto& dp = measured.everywhere.groups.at("dp");
        const int64_t losses = 8 * 4;
        EXPECT_EQ(
            2 * (dp[kAllReduce].bytes - losses) + dp[kReduceScatter].bytes + dp[kAllGather].bytes,
            4 * expected[stage] * (4 * measured.params))
            << "stage " << stage << ", " << m << " micro-batches, recompute " << recompute;
      }
    }
  }
}

// The volume of one more layer (arXiv:1909.08053, section 3; arXiv:2205.05198, section 4.2.2).
RANKS_TEST_F(PaperTerms, TensorParallelVolumePerLayer) {
  const CommPtr world = first_ranks(2);
  if (!world) return;
  const int64_t hidden = kRows * 8 * 16 * 4;
  for (const bool sequence : {false, true}) {
    for (const bool recompute : {false, true}) {
      VolumeCase k{.mesh = {.tp_size = 2}, .micro_batches = 3, .recompute = recompute};
      k.sequence = sequence;
      const auto few = measure(k, world).counts.groups.at("tp");
      ++k.num_layers;
      const auto more = measure(k, world).counts.groups.at("tp");
      const int64_t maps = 3 * (recompute ? 6 : 4) * hidden;
      const int64_t again = 3 * 2 * hidden;  // inputs of the two matrices, in the backward
      EXPECT_EQ(more[kAllGather].bytes - few[kAllGather].bytes, sequence ? maps + again : 0);
      EXPECT_EQ(more[kReduceScatter].bytes - few[kReduceScatter].bytes, sequence ? maps : 0);
      // Two norms with two tensors each, and two row-parallel biases, all of h elements.
      EXPECT_EQ(more[kAllReduce].bytes - few[kAllReduce].bytes, sequence ? 6 * 16 * 4 : maps);
    }
  }
}

// Each boundary moves b s h each way per micro-batch (arXiv:2104.04473, section 3.2).
RANKS_TEST_F(PaperTerms, PipelineVolumePerBoundary) {
  const CommPtr world = first_ranks(3);
  if (!world) return;
  const Measured measured = measure({.mesh = {.pp_size = 3}, .micro_batches = 4}, world);
  const int64_t hidden = kRows * 8 * 16 * 4, ways = world->rank() == 1 ? 2 : 1;
  EXPECT_EQ(measured.counts.groups.at("pp")[kExchange], (Traffic{ways * 4, ways * 4 * hidden}));
}

}  // namespace
}  // namespace anymesh
