// Which mesh fits and is fast? Ranks the legal meshes of a model by the predicted time of a step:
//
//   plan --params 7B --gpus 64 --preset h100
//   plan --hf-config llama/config.json --seq-length 4096 --global-batch-size 1024 --gpus 64
//        --memory 80 --tflops 990 --nvlink 450 --network 50 --explain tp2-pp1-dp32-zero1-b1
//   plan --measure --gpus 2                           the rates of this machine, as flags
//
// It takes all flags of pretrain_gpt. Those of the mesh, where given, are kept. docs/plan.md says
// what is reckoned and what is left out.
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <iterator>

#include "framework/config/command_line.h"
#include "framework/config/parse.h"
#include "framework/config/require.h"
#include "framework/util/format.h"
#include "framework/util/memory_sizes.h"
#include "framework/util/parse_number.h"
#include "tools/hf/gpt/args.h"
#include "tools/hf/gpt/config.h"
#include "tools/plan/printed_plan.h"
#include "tools/run_tool.h"

namespace anymesh {
namespace {

constexpr const char* kDescription =
    R"(Ranks the meshes that a model can be trained on by the predicted time of a step.

Takes the flags of pretrain_gpt too: the model's, --global-batch-size, --bf16, and any of the mesh,
which are then kept. Prints the memory, the bubble, the time and the MFU of each mesh, and the flags
of the best one.

Examples:
  plan --params 7B --gpus 64 --preset h100
  plan --hf-config llama/config.json --seq-length 4096 --global-batch-size 1024 --bf16 --gpus 64
      --memory 80 --tflops 990 --nvlink 450 --network 50
  plan --measure --gpus 2
)";

struct Preset {
  const char* name;
  Machine machine;
};
// Data sheets' values. The CPU's are from plan --measure (docs/plan.md).
constexpr Preset kPresets[] = {
    {"h100", {.memory = 80, .tflops = 989, .nvlink = 450, .network = 50, .memory_bandwidth = 3350}},
    {"a100", {.memory = 80, .tflops = 312, .nvlink = 300, .network = 25, .memory_bandwidth = 2039}},
    {"cpu",
     {.memory = 8,
      .tflops = 0.084,
      .efficiency = 1,
      .nvlink = 1.13,
      .network = 1.13,
      .memory_bandwidth = 17,
      .link_efficiency = 1,
      .latency = 244}}};

// mesh_flags() prints these.
constexpr std::string_view kMeshFlags[] = {
    "tensor-model-parallel-size", "pipeline-model-parallel-size",
    "expert-model-parallel-size", "expert-tensor-parallel-size",
    "micro-batch-size",           "zero-stage",
    "sequence-parallel",          "activation-checkpointing"};

struct Arguments {
  Machine machine;
  std::string preset, params, hf_config, explain, trainer;
  int top = 20;
  bool json = false, measure = false;
  Config config;
  GptConfig gpt;
  std::string help, words;  // of --help; of a command line of the trainer, without the mesh
  std::string missing;      // flags that a run needs beside these
  std::vector<MeshChoice> choices;
  std::string refused;
};

void add_plan_flags(FlagTable& flags, Arguments& a) {
  Machine& m = a.machine;
  const FlagRule positive{.shown = "the preset's", .above = 0};
  flags.group("Plan");
  flags.add("gpus", m.gpus, "ranks", {.shown = "required", .least = 1, .most = 1 << 20});
  flags.add("preset", a.preset, "values of the eight flags below; GPUs imply --bf16",
            {.shown = "none", .choices = {"", "h100", "a100", "cpu"}});
  flags.add("memory", m.memory, "GiB of a rank, of which nine tenths are used", positive);
  flags.add("tflops", m.tflops, "peak of a rank, in 1e12 operations a second", positive);
  flags.add("nvlink", m.nvlink, "GB/s of a rank, one way, to ranks of its node", positive);
  flags.add("network", m.network, "GB/s of a rank, one way, to other nodes", positive);
  flags.add("memory-bandwidth", m.memory_bandwidth, "GB/s of a rank's memory", {.above = 0});
  flags.add("efficiency", m.efficiency, "part of --tflops that products reach",
            {.most = 1, .above = 0});
  flags.add("link-efficiency", m.link_efficiency, "part of the three GB/s that is reached",
            {.most = 1, .above = 0});
  flags.add("latency", m.latency, "microseconds of a collective", {.least = 0});
  flags.add("gpus-per-node", m.node, "ranks that --nvlink joins", {.least = 1});
  flags.add("params", a.params, "a model of this size, such as 7B or 350M, shaped like Llama",
            {.shown = "none", .excludes = {"--hf-config"}});
  flags.add("hf-config", a.hf_config, "config.json of a model of Hugging Face", {.shown = "none"});
  flags.add("explain", a.explain, "show the sum of one mesh, by its name or its place in the list",
            "none");
  flags.add("top", a.top, "meshes to show; 0: all that are legal, also those that do not fit",
            {.least = 0});
  flags.add("json", a.json,
            "print JSON, of these or of --explain's, with each stage's memory and traffic");
  flags.add("measure", a.measure,
            "run pretrain_gpt on --gpus threads for some seconds, and print the rates it reaches");
  flags.add("trainer", a.trainer, "the pretrain_gpt for --measure",
            {.shown = "the one beside plan", .needs = {"--measure"}});
}

// Fills in what neither a flag nor, if it is known, the model gives.
void fill(FlagTable& flags, const char* flag, const std::string& origin, const std::string& value) {
  if (!flags.given(flag)) flags.set(flag, origin, {value});
}

// 12 L h^2 parameters, with 128 layers' width a layer, as models of 1B to 200B have.
void set_params(FlagTable& flags, const std::string& text) {
  const std::string origin = "--params " + text;
  const std::string units = "MBT";
  const size_t unit = text.empty() ? units.npos : units.find(text.back());
  const auto number = parse_number<double>(text.substr(0, text.empty() ? 0 : text.size() - 1));
  require(unit != units.npos && number && *number > 0 && *number < 1e4, "--params (", text,
          "): expected a number and M, B or T, such as 7B");
  const double count = *number * std::pow(1e3, static_cast<double>(unit) + 2);
  const double wide = std::cbrt(count * 128 / 12);
  const int64_t step = wide < 4000 ? 256 : 1024,  // so that tp 8 divides the heads of large ones
      h = step * std::max<int64_t>(1, std::llround(wide / static_cast<double>(step))),
                layers = 4 * std::max<int64_t>(1, std::llround(count / 48 / double(h) / double(h)));
  for (const auto& [flag, value] : {std::pair("num-layers", layers),
                                    {"hidden-size", h},
                                    {"num-attention-heads", std::max<int64_t>(1, h / 128)},
                                    {"seq-length", 4096},
                                    {"vocab-size", 32000}})
    fill(flags, flag, origin, std::to_string(value));
  for (const char* flag :
       {"swiglu", "use-rotary-position-embeddings", "untie-embeddings-and-output-weights"})
    fill(flags, flag, origin, "true");
  fill(flags, "global-batch-size", origin, "1024");
  fill(flags, "disable-bias-linear", origin, "false");
  for (const char* flag : {"attention-dropout", "hidden-dropout"}) fill(flags, flag, origin, "0");
  fill(flags, "normalization", origin, "rmsnorm");
}

void set_hf_config(FlagTable& flags, const std::string& file) {
  const HfModel model = read_hf_config(file);
  const std::vector<Setting> defaults = settings_of(GptConfig()), settings = settings_of(model.gpt);
  for (size_t i = 0; i < settings.size(); ++i) {
    const Setting& s = settings[i];
    if (s.value == defaults[i].value || flags.given(s.flag)) continue;
    const bool is_switch = std::holds_alternative<bool>(s.value);
    flags.set(s.flag, "--hf-config " + file,
              {is_switch ? (std::get<bool>(s.value) ? "true" : "false") : s.text});
  }
  fill(flags, "vocab-size", "--hf-config " + file, std::to_string(model.gpt.vocab_size));
}

void use_preset(FlagTable& flags, Arguments& a) {
  for (const Preset& preset : kPresets) {
    if (a.preset != preset.name) continue;
    const Machine& from = preset.machine;
    Machine& to = a.machine;
    for (const auto& [flag, field, value] :
         {std::tuple("memory", &to.memory, from.memory),
          {"tflops", &to.tflops, from.tflops},
          {"nvlink", &to.nvlink, from.nvlink},
          {"network", &to.network, from.network},
          {"memory-bandwidth", &to.memory_bandwidth, from.memory_bandwidth},
          {"efficiency", &to.efficiency, from.efficiency},
          {"link-efficiency", &to.link_efficiency, from.link_efficiency},
          {"latency", &to.latency, from.latency}})
      if (!flags.given(flag)) *field = value;
    if (a.preset != "cpu" && !flags.given("fp16")) fill(flags, "bf16", "--preset", "true");
  }
}

// The rules of a run's length and data are of no concern here, nor are flags that change no sum.
void fill_rest(FlagTable& flags, Arguments& a) {
  Config& config = a.config;
  if (!a.params.empty()) set_params(flags, a.params);
  if (!a.hf_config.empty()) set_hf_config(flags, a.hf_config);
  use_preset(flags, a);
  const auto lacks = [&](const char* flag) {
    if (!flags.given(flag)) a.missing += std::string(a.missing.empty() ? "--" : ", --") + flag;
    return !flags.given(flag);
  };
  if (a.gpt.max_position_embeddings == 0)
    fill(flags, "max-position-embeddings", "--seq-length", std::to_string(a.gpt.seq_length));
  if (lacks("lr")) config.engine.schedule.max_lr = 1e-3;
  if (!flags.given("train-samples") && lacks("train-iters")) config.batch.train_iters = 1 << 20;
  if (!flags.given("mock-data")) lacks("data-path");
  config.data.own = true;
  a.gpt.vocab_size = config.data.vocab_size;
}

// Keeps all sums below 2^63.
void check_size(const Arguments& a) {
  const GptConfig& c = a.gpt;
  const double h = c.hidden_size, heads = 4.0 * c.num_attention_heads * std::max(1, c.kv_channels),
               inner = 3.0 * std::max(1, c.num_experts) * std::max(c.ffn_size(), c.moe_ffn_size()),
               layer = h * (4 * h + heads + inner),
               table = 2 * h * (256.0 * a.machine.gpus + c.vocab_size + c.max_position_embeddings),
               samples = a.config.batch.global_batch_size,
               tokens = samples * c.seq_length * (h + heads + inner + c.vocab_size);
  require((c.num_layers * layer + table) * (samples + a.machine.gpus) < 1e17 &&
              tokens * c.num_layers < 1e17,
          "the model, times --global-batch-size or --gpus, is too large to reckon with");
}

void check_plan(const FlagTable& flags, const Arguments& a) {
  const Machine& m = a.machine;
  for (const auto& [flag, value] : {std::pair("memory", m.memory),
                                    {"tflops", m.tflops},
                                    {"nvlink", m.nvlink},
                                    {"network", m.network}})
    require(value > 0, "--", flag, " is missing; give it or --preset h100, a100 or cpu");
  require(a.gpt.vocab_size > 0, "--vocab-size is missing: plan reads no tokenizer");
  require(flags.given("global-batch-size"),
          "--global-batch-size is missing: all meshes are to train the same batch");
  check_size(a);
  const std::string all = ": plan reckons with all parameters trained";
  require(a.gpt.lora_rank == 0, flags.origin("lora-rank"), all);
  require(a.config.engine.freeze.empty(), flags.origin("freeze"), all);
  require(a.config.engine.zero.optimizer.name != "muon", flags.origin("optimizer"),
          ": plan knows the traffic of adam, sgd and lion");
  require(a.config.parallel.layers_per_chunk == 0,
          flags.origin("num-layers-per-virtual-pipeline-stage"),
          ": plan reckons with one chunk a stage");
  require(a.config.engine.pipeline_schedule == "1f1b", flags.origin("pipeline-schedule"),
          ": plan reckons with 1f1b");
  require(!a.config.engine.zero.overlap_param_gather, flags.origin("overlap-param-gather"),
          ": plan reckons with a gather before the forward");
  require(a.gpt.recompute_modules.empty(), flags.origin("recompute-modules"),
          ": plan reckons with layers that are kept or recomputed whole");
}

Arguments parse_plan(int argc, char** argv) {
  Arguments a;
  const std::vector<std::string> args(argv + 1, argv + argc);
  FlagTable own("plan", kDescription), flags("plan", kDescription);
  add_plan_flags(own, a);
  a.help = text_asked_for(own, args);
  if (!a.help.empty()) return a;
  add_plan_flags(flags, a);
  const size_t first = flags.flags().size();
  add_flags(flags, a.config);
  add_flags(flags, a.gpt);
  if (std::find(args.begin(), args.end(), "--measure") != args.end()) {
    read_command_line(own, args);
    own.check();
    if (a.trainer.empty())
      a.trainer = std::filesystem::read_symlink("/proc/self/exe").replace_filename("pretrain_gpt");
    require(std::filesystem::exists(a.trainer), "--measure runs the trainer: there is no ",
            a.trainer, "; give --trainer FILE");
    return a;
  }
  const ParseResult parsed = parse(flags, a.config, args, [&] { fill_rest(flags, a); });
  check_plan(flags, a);
  for (size_t i = first; i < parsed.settings.size(); ++i) {
    const Setting& setting = parsed.settings[i];
    const bool of_mesh = std::ranges::find(kMeshFlags, setting.flag) != std::end(kMeshFlags);
    if (setting.given && !of_mesh && !setting.words.empty()) a.words += " " + setting.words;
  }
  for (const std::string& note : parsed.notes) std::fprintf(stderr, "plan: %s\n", note.c_str());
  const std::string scores = a.preset == "cpu" ? "" : model_facts(a.gpt, 1).gpu_note;
  if (!scores.empty()) std::fprintf(stderr, "plan: left out: %s\n", scores.c_str());
  a.choices = legal_meshes(a.config, a.gpt, flags, a.machine.gpus, a.refused);
  for (MeshChoice& choice : a.choices)  // NCCL gets fp32 unless bf16 is asked for
    if (a.preset != "cpu" && choice.step.gradient_bytes == 0) choice.step.gradient_bytes = 4;
  require(!a.choices.empty(), "no mesh of ", with("--gpus", a.machine.gpus),
          " is legal; the last one that was tried: ", a.refused);
  return a;
}

int plan(const Arguments& a) {
  if (!a.help.empty()) {
    std::printf("%s", a.help.c_str());
    return 0;
  }
  if (a.measure) {
    std::printf("%s\n", machine_flags(measured_machine(a.trainer, a.machine.gpus)).c_str());
    return 0;
  }
  std::vector<MeshPlan> plans;
  const auto named = std::ranges::find(a.choices, a.explain, &MeshChoice::name);
  for (auto choice = a.choices.begin(); choice != a.choices.end(); ++choice)
    if (named == a.choices.end() || choice == named)
      plans.push_back(plan_of(*choice, a.gpt, a.machine));
  std::ranges::stable_sort(plans, {},
                           [](const MeshPlan& p) { return std::pair(!p.fits, p.time.sum()); });
  const std::string text = printed_plans(
      {plans, a.gpt, a.machine, "pretrain_gpt" + a.words, a.missing, a.explain, a.top, a.json});
  std::printf("%s", text.c_str());
  return plans[0].fits || a.json ? 0 : 1;
}

}  // namespace
}  // namespace anymesh

int main(int argc, char** argv) {
  return anymesh::run_tool("plan", 2, argc, argv, anymesh::parse_plan, anymesh::plan);
}
