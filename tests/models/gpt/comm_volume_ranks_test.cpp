// Compares the traffic of one training step, counted in the communicator, with the closed form of
// docs/scaling.md and with the bytes that MPI was given to send.
#include <gtest/gtest.h>
#include <mpi.h>

#include "framework/pipeline/pipeline_engine.h"
#include "framework/pipeline/schedule.h"
#include "framework/zero/zero_optimizer.h"
#include "models/gpt/gpt_model.h"
#include "tests/support/ranks.h"

namespace {
int64_t mpi_bytes = 0;  // handed to MPI by this rank

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

struct Case {
  Topology mesh;
  int zero_stage = 0, micro_batches = 1;
  bool recompute = false, sequence = false;
  bool llama = false;  // untied, no biases, RMSNorm, SwiGLU, rotary; in bf16
  int num_layers = 5;
};

std::string describe(const Case& k) {
  return c10::str(describe(k.mesh), ", ZeRO ", k.zero_stage, ", ", k.micro_batches,
                  " micro-batches", k.recompute ? ", recompute" : "",
                  k.sequence ? ", sequence" : "", k.llama ? ", llama" : ", gpt");
}

GptConfig config_of(const Case& k) {
  GptConfig c;
  c.num_layers = k.num_layers;
  c.hidden_size = 16;
  c.num_attention_heads = 4;
  c.seq_length = 8;
  c.max_position_embeddings = 9;
  c.make_vocab_size_divisible_by = 3;
  c.vocab_size = 17;
  if (!k.llama) return c;
  c.untie_embeddings_and_output_weights = c.use_rotary_position_embeddings = c.swiglu = true;
  c.add_bias_linear = false;
  c.normalization = "rmsnorm";
  c.ffn_hidden_size = 12;
  return c;
}

struct Measured {
  CommCounts counts;      // summed over the dp ranks of this stage and tp rank
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

Measured step(const Case& k, const GptConfig& c, const CommPtr& world) {
  CommCounts counts;
  const ProcessGrid grid(world, k.mesh, &counts);
  GptModel model(c, grid, k.llama ? torch::kBFloat16 : torch::kFloat, kRows, 7, k.sequence);
  ZeroOptimizer optimizer(model.params(), grid, {.stage = k.zero_stage});
  model.runner().set_observer(&optimizer);
  model.runner().set_recompute(k.recompute);
  PipelineEngine engine(model, grid);
  const torch::Tensor tokens = torch::arange(kRows * c.seq_length).view({kRows, -1}) % c.vocab_size;
  std::vector<MicroBatch> batches;
  for (int64_t i = 0; i < k.micro_batches; ++i)
    batches.push_back({tokens, tokens, {.seed = 1, .samples = {2 * i, 2 * i + 1}}});

  counts.reset();
  mpi_bytes = 0;
  const torch::Tensor loss =
      torch::full({1}, engine.forward_backward(batches, 1.0 / k.micro_batches), torch::kDouble);
  grid.dp->all_reduce(loss);
  optimizer.step(1e-3, optimizer.reduce_gradients());
  Measured measured{.counts = counts};

  torch::Tensor sent = torch::full({1}, mpi_bytes, torch::kLong);
  world->all_reduce(sent);
  measured.wire = sent.item<int64_t>();
  measured.everywhere = summed(measured.counts, world);
  measured.counts =
      summed(measured.counts, world->split(k.mesh.rank_of({grid.coord.pp, 0, grid.coord.tp}), 0));
  for (const ParamSpec& spec : model.params()) measured.params += spec.tensor.numel();
  return measured;
}

// The closed form for the traffic of a stage's dp ranks (one tp rank of each) in a step. It depends
// on the configuration alone. Letters are as in docs/scaling.md.
class ClosedForm {
 public:
  ClosedForm(const Case& test, const GptConfig& config, int pp_rank)
      : k(test),
        c(config),
        first(pp_rank == 0),
        last(pp_rank == p - 1),
        tied(!c.untie_embeddings_and_output_weights) {
    const LayerRange range = layers_of_stage(c.num_layers, k.mesh.pp_size, pp_rank);
    layers = range.end - range.begin;
    for (const char* group : {"world", "tp", "pp", "dp", "model", "embedding"})
      counts.groups[group];
    list_params();
    tensor_parallel();
    pipeline();
    data_parallel();
    add(k.zero_stage == 0 ? "model" : "world", kAllReduce, 1, 8);  // the gradient norm
  }
  CommCounts counts;

 private:
  struct Param {
    int64_t numel;
    int unit;
    bool decays, sequence_sum;
  };
  const Case& k;
  const GptConfig& c;
  const int64_t t = k.mesh.tp_size, p = k.mesh.pp_size, d = k.mesh.dp_size, m = k.micro_batches;
  const int64_t h = c.hidden_size, e = k.llama ? 2 : 4;  // bytes of a weight or activation
  const int64_t hidden = kRows * c.seq_length * h * e;   // b s h, in bytes
  const int64_t table = padded_vocab_size(c, k.mesh.tp_size) / t * h;
  const bool first, last, tied;
  int layers = 0;
  std::vector<Param> params;

  int64_t group_size(const std::string& group) const {
    if (group == "tp") return t;
    if (group == "pp") return p;
    if (group == "dp") return d;
    if (group == "embedding") return p > 1 && (first || last) ? 2 : 1;
    return group == "model" ? t * p : t * p * d;
  }
  void add(const std::string& group, Verb verb, int64_t calls, int64_t bytes) {
    if (group_size(group) == 1) return;
    Traffic& traffic = counts.groups.at(group)[verb];
    traffic.calls += d * calls;
    traffic.bytes += d * calls * bytes;
  }

  void list_params() {
    const bool norm_bias = c.normalization == "layernorm";
    const int64_t head_width = h / c.num_attention_heads, f = c.ffn_size() * (c.swiglu ? 2 : 1);
    const int64_t qkv = h + 2 * c.key_value_heads() * head_width;
    const auto norm = [&](int unit) {
      params.push_back({h, unit, false, true});
      if (norm_bias) params.push_back({h, unit, false, true});
    };
    const auto linear = [&](int unit, int64_t weight, int64_t bias, bool row) {
      params.push_back({weight, unit, true, false});
      if (c.add_bias_linear) params.push_back({bias, unit, false, row});
    };
    int unit = 0;
    if (first) {
      params.push_back({table, 0, true, false});
      if (c.learned_positions())
        params.push_back({int64_t{c.max_position_embeddings} * h, 0, true, true});
      ++unit;
    }
    for (int i = 0; i < layers; ++i, ++unit) {
      norm(unit);
      linear(unit, qkv * h / t, qkv / t, false);
      linear(unit, h * h / t, h, true);
      norm(unit);
      linear(unit, f * h / t, f / t, false);
      linear(unit, h * c.ffn_size() / t, h, true);
    }
    if (!last) return;
    norm(unit);
    if (!tied || !first) params.push_back({table, unit, true, false});
  }

  // Counts how often each of the four maps of mappings.h runs.
  void tensor_parallel() {
    const int64_t forwards = k.recompute ? 2 : 1;
    const int64_t enter_forward = m * forwards * (2 * layers + last),
                  leave_forward = m * (forwards * 2 * layers + first),
                  enter_backward = m * (2 * layers + last),
                  leave_backward = m * (2 * layers + first);
    if (k.sequence) {
      add("tp", kAllGather, enter_forward + leave_backward, hidden);
      add("tp", kReduceScatter, leave_forward + enter_backward, hidden);
      if (t > 1) {  // partitions of it differ between dp ranks, but not their sum
        int64_t numel = 0;
        for (const Param& param : params) numel += param.sequence_sum ? param.numel : 0;
        Traffic& traffic = counts.groups["tp"][kAllReduce];
        traffic.calls += d;
        traffic.bytes += numel * 4 * (k.zero_stage == 0 ? d : 1);
      }
    } else {
      add("tp", kAllReduce, leave_forward + enter_backward, hidden);
    }
    if (last) add("tp", kAllReduce, 3 * m * forwards, kRows * c.seq_length * 4);  // cross entropy
  }

  void pipeline() {
    const int64_t part = k.sequence ? hidden / t : hidden;
    if (!last) add("pp", kExchange, m, part);
    if (!first) add("pp", kExchange, m, part);
    add("pp", kBroadcast, 1, 8);  // the loss
  }

  int64_t numel(bool decays) const {
    int64_t sum = 0;
    for (const Param& param : params) sum += param.decays == decays ? param.numel : 0;
    return sum;
  }
  static int64_t padded(int64_t n, int64_t multiple) {
    return (n + multiple - 1) / multiple * multiple;
  }

  void data_parallel() {
    const int z = k.zero_stage;
    add("dp", kAllReduce, 1, 8);  // the loss
    for (const bool decays : {true, false}) {
      const int64_t n = numel(decays), flat = padded(n, 2 * d);
      if (z == 0) add("dp", kAllReduce, 1, padded(n, 2) * 4);
      if (z == 1) add("dp", kReduceScatter, 1, flat * 4);
      if (z >= 2) add("dp", kReduceScatter, m, n * e);
      if (z == 1 || z == 2) add("dp", kAllGather, 1, flat * e);
    }
    const bool twice = tied && first && last;
    if (z == 0 && twice) add("dp", kAllReduce, 1, table * 4);
    if (z == 1 && twice) add("dp", kReduceScatter, 1, table * 4);
    if (z >= 2 && twice) add("dp", kReduceScatter, m, table * e);
    if (z == 3) {
      const int head = layers + first, units = head + last;
      for (int unit = 0; unit < units; ++unit) {
        int64_t whole = twice && unit == head ? padded(table, d) : 0;
        for (const Param& param : params) whole += param.unit == unit ? padded(param.numel, d) : 0;
        add("dp", kAllGather, 2 * m, whole * e);
      }
    }
    if (tied && p > 1 && (first || last)) {
      if (z >= 1) add("dp", kAllReduce, 1, table * 4);
      add("embedding", kAllReduce, 1, table * 4);
    }
  }
};

// Returns the bytes that all ranks hand to MPI for these payloads.
int64_t wire_bytes(const CommCounts& everywhere, const Topology& mesh) {
  const std::map<std::string, int> sizes = {{"world", mesh.world_size()},
                                            {"tp", mesh.tp_size},
                                            {"pp", mesh.pp_size},
                                            {"dp", mesh.dp_size},
                                            {"model", mesh.tp_size * mesh.pp_size},
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

void expect_equal(const CommCounts& actual, const CommCounts& expected) {
  ASSERT_EQ(actual.groups.size(), expected.groups.size());
  for (const auto& [group, traffic] : expected.groups) {
    for (size_t verb = 0; verb < kVerbs; ++verb) {
      const Traffic &is = actual.groups.at(group)[verb], &should = traffic[verb];
      const std::string what = group + " " + kVerbNames[verb];
      EXPECT_EQ(is.calls, should.calls) << what;
      EXPECT_EQ(is.bytes, should.bytes) << what;
    }
  }
}

class CommVolume : public testing::TestWithParam<std::tuple<Topology, int>> {};
struct CommVolumeRank : RankFixtureOf<CommVolume> {};

RANKS_TEST_P(CommVolume, EqualsTheClosedFormAndWhatMpiSends) {
  Case k{.mesh = std::get<0>(GetParam()), .zero_stage = std::get<1>(GetParam())};
  const CommPtr world = first_ranks(k.mesh.world_size());
  if (!world) return;
  for (int choice = 0; choice < 8; ++choice) {
    k.recompute = choice & 1, k.sequence = choice & 2, k.llama = choice & 4;
    k.micro_batches = 1 + choice % 3;
    SCOPED_TRACE(describe(k));
    const GptConfig c = config_of(k);
    const Measured measured = step(k, c, world);
    expect_equal(measured.counts, ClosedForm(k, c, k.mesh.coord_of(world->rank()).pp).counts);
    EXPECT_EQ(measured.wire, wire_bytes(measured.everywhere, k.mesh));
  }
}

std::string name_of(const testing::TestParamInfo<std::tuple<Topology, int>>& info) {
  const auto& [mesh, zero_stage] = info.param;
  return c10::str("pp", mesh.pp_size, "dp", mesh.dp_size, "tp", mesh.tp_size, "zero", zero_stage);
}
INSTANTIATE_TEST_SUITE_P(Meshes, CommVolume,
                         testing::Combine(testing::Values(Topology{1, 1, 1}, Topology{1, 1, 4},
                                                          Topology{1, 3, 1}, Topology{3, 1, 1},
                                                          Topology{1, 2, 2}, Topology{2, 2, 2},
                                                          Topology{4, 2, 1}),
                                          testing::Values(0, 1, 2, 3)),
                         name_of);

// The leading terms for a model without padding, as the papers give them.
struct PaperTerms : RankFixture {
  Measured measure(const Case& k, const CommPtr& world) {
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
      Case k{.mesh = {.tp_size = 2}, .micro_batches = 3, .recompute = recompute};
      k.sequence = sequence;
      const auto few = measure(k, world).counts.groups.at("tp");
      ++k.num_layers;
      const auto more = measure(k, world).counts.groups.at("tp");
      const int64_t maps = 3 * (recompute ? 6 : 4) * hidden;
      EXPECT_EQ(more[kAllGather].bytes - few[kAllGather].bytes, sequence ? maps : 0);
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
