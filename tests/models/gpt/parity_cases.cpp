#include "tests/models/gpt/parity_cases.h"

#include <algorithm>
#include <set>
#include <utility>

#include "tests/support/gpt_flags.h"

namespace anymesh {
namespace {

struct Architecture {
  const char *name, *flags, *more = "";
};

constexpr const char* kLlama =
    "--untie-embeddings-and-output-weights --use-rotary-position-embeddings --disable-bias-linear "
    "--normalization rmsnorm --num-key-value-heads 2 --ffn-hidden-size 12 --swiglu ";
constexpr const char* kGeglu =
    "--use-rotary-position-embeddings --disable-bias-linear --normalization rmsnorm "
    "--num-key-value-heads 2 --ffn-hidden-size 12 --geglu ";
constexpr const char* kDocuments = "--reset-position-ids --reset-attention-mask --eod-mask-loss ";

// "gpt" is the one without options. Together these have every option.
const Architecture kArchitectures[] = {
    {"gpt", ""},
    {"untied", "--untie-embeddings-and-output-weights"},
    {"llama", kLlama},
    {"swiglu",
     "--use-rotary-position-embeddings --swiglu --ffn-hidden-size 12 --rotary-percent 0.5"},
    // Twelve heads are no power of two, so the slopes differ.
    {"bloom",
     "--position-embedding-type alibi --embed-layernorm --hidden-size 24 --num-attention-heads 12"},
    {"mistral", kLlama, "--window-size 2,0"},
    {"qwen2", kLlama, "--add-qkv-bias"},
    {"qwen3", kLlama, "--qk-layernorm --kv-channels 6 --add-attention-linear-bias"},
    {"olmoe", kLlama,
     "--qk-layernorm --qk-layernorm-all-heads --apply-layernorm-1p --kv-channels 6 --num-experts 3 "
     "--moe-router-pre-softmax"},
    {"neox",
     "--position-embedding-type rope --rotary-percent 0.5 --use-parallel-residual "
     "--untie-embeddings-and-output-weights --no-bias-gelu-fusion"},
    {"gemma", kGeglu,
     "--apply-layernorm-1p --apply-embedding-scaling --qk-layernorm --kv-channels 10"},
    {"opt", "--relu --position-embedding-offset 2"},
    {"alibi", "--position-embedding-type alibi --window-size 1,0"},
    {"experts", kLlama,
     "--num-experts 6 --moe-ffn-hidden-size 8 --moe-aux-loss-coeff 0.3 --moe-z-loss-coeff 0.01"},
    {"expertsmany", kLlama,
     "--num-experts 8 --moe-router-topk 3 --moe-shared-expert-intermediate-size 20 "
     "--moe-shared-expert-gate --moe-aux-loss-coeff 0.3"},
    {"expertsbiased", kLlama,
     "--num-experts 6 --moe-ffn-hidden-size 8 --moe-router-score-function sigmoid "
     "--moe-router-enable-expert-bias --moe-router-topk-scaling-factor 2.5 "
     "--moe-aux-loss-coeff 0.3"},
    {"expertsshared", kGeglu,
     "--untie-embeddings-and-output-weights --num-experts 3 --moe-router-topk 3 "
     "--moe-router-pre-softmax --moe-layer-freq [0,1,1] --moe-shared-expert-intermediate-size 20 "
     "--moe-shared-expert-gate --moe-aux-loss-coeff 0.2"},
    {"documents", kDocuments},
    {"documentsllama", kDocuments, kLlama},
    {"documentsalibi",
     "--reset-attention-mask --eod-mask-loss --position-embedding-type alibi --window-size 3,0"},
    {"adapters", kLlama, "--lora-rank 3 --lora-alpha 5 --lora-target all-linear"},
    {"adaptersgpt", "--lora-rank 2"},
    {"adaptersexperts", kLlama,
     "--num-experts 3 --moe-layer-freq [0,1,1] --moe-shared-expert-intermediate-size 20 "
     "--moe-shared-expert-gate --moe-aux-loss-coeff 0.2 --lora-rank 3 --lora-target all-linear"},
};

std::vector<ParityCase> cases(const std::vector<std::string>& architectures, int max_pp) {
  std::vector<ParityCase> out;
  for (int tp : {1, 2, 4}) {
    for (int pp = 1; pp <= max_pp; pp *= 2) {
      for (int dp : {1, 2}) {
        if (tp * pp * dp > 8) continue;
        for (const std::string& architecture : architectures) {
          out.push_back({tp, pp, dp, architecture});
        }
      }
    }
  }
  return out;
}

// The families have no communication of their own, so dp goes along with pp.
std::vector<ParityCase> family_cases() {
  std::vector<ParityCase> out;
  for (const ParityCase& test :
       cases({"mistral", "qwen2", "qwen3", "neox", "gemma", "opt", "alibi", "experts",
              "expertsbiased", "expertsshared", "olmoe", "documents", "documentsllama",
              "documentsalibi", "adapters", "adaptersgpt", "adaptersexperts"},
             2))
    if (test.dp == test.pp) out.push_back(test);
  return out;
}

// Cases with the sequence cut, at the ZeRO stages that differ most. At tp 1 there is nothing to
// cut.
std::vector<ParityCase> sequence_cases() {
  std::vector<ParityCase> out;
  for (ParityCase test :
       cases({"gpt", "untied", "llama", "bloom", "gemma", "neox", "documents", "experts",
              "expertsshared", "olmoe", "adapters", "adaptersgpt", "adaptersexperts"},
             2)) {
    if (test.tp == 1 && test.pp == 2) continue;
    test.sequence = true;
    out.push_back(test);
    test.zero_stage = 3;
    if (test.dp > 1) out.push_back(test);
  }
  return out;
}

// Experts over ranks, cut by tp or whole, at the ZeRO stages that differ most.
std::vector<ParityCase> expert_cases() {
  std::vector<ParityCase> out;
  for (const int tp : {1, 2})
    for (const int pp : {1, 2})
      for (const int dp : {1, 2, 4, 8})
        for (const int ep : {1, 2, 4})
          for (const bool whole : {false, true})
            for (const int stage : {0, 3}) {
              const int ranks = whole ? dp * tp : dp;
              const bool new_mesh = ep > 1 || whole;  // the others are in the two above
              if (tp * pp * dp > 8 || ranks % ep != 0 || !new_mesh || (whole && tp == 1)) continue;
              ParityCase test{tp, pp, dp,
                              ep == 4    ? "expertsmany"
                              : dp == tp ? "expertsbiased"
                                         : "experts"};
              test.sequence = whole || (tp == 2 && stage == 3);
              test.zero_stage = stage;
              test.ep = ep;
              test.whole_experts = whole;
              if (test.rows() * dp > ParityCase::kSamples) continue;
              out.push_back(test);
            }
  return out;
}

std::vector<ParityCase> all_cases() {
  std::vector<ParityCase> all;
  for (const std::vector<ParityCase>& some :
       {cases({"gpt", "untied"}, 4), cases({"llama", "swiglu", "bloom"}, 2), family_cases(),
        expert_cases(), sequence_cases()})
    all.insert(all.end(), some.begin(), some.end());
  return all;
}

using Part = std::vector<int>;

int architecture_of(const ParityCase& test) {
  return static_cast<int>(
      std::ranges::find(kArchitectures, test.architecture, &Architecture::name) - kArchitectures);
}

// Returns each pair of a case's values, and its mesh with its options.
std::set<Part> pairs_of(const ParityCase& test) {
  const Part values = {test.tp,       test.pp,         test.dp, architecture_of(test),
                       test.sequence, test.zero_stage, test.ep, test.whole_experts};
  Part mesh = values;
  mesh[3] = -1;
  std::set<Part> parts = {mesh};
  for (int i = 0; i < std::ssize(values); ++i)
    for (int j = 0; j < i; ++j)
      parts.insert({i, j, values[static_cast<size_t>(i)], values[static_cast<size_t>(j)]});
  return parts;
}

// Adds each architecture at each tp, with and without its sequence cut, and with the explicit form
// of attention.
std::set<Part> pairs_and_shards_of(const ParityCase& test) {
  std::set<Part> parts = pairs_of(test);
  parts.insert({architecture_of(test), test.tp, test.sequence});
  if (test.pp * test.dp == 1) parts.insert({architecture_of(test), test.tp});
  return parts;
}

// Returns some of the cases, which have every part that all have. Those with most new parts come
// first.
std::vector<ParityCase> covering(std::set<Part> (*parts_of)(const ParityCase&)) {
  std::vector<std::pair<ParityCase, std::set<Part>>> left;
  for (const ParityCase& test : all_cases()) left.emplace_back(test, parts_of(test));
  std::vector<ParityCase> chosen;
  std::set<Part> covered;
  for (size_t least = 32; least > 0; --least) {  // no case has more parts
    for (auto& [test, parts] : left) {
      std::erase_if(parts, [&](const Part& part) { return covered.contains(part); });
      if (parts.size() < least) continue;
      covered.merge(parts);
      chosen.push_back(test);
    }
  }
  return chosen;
}

}  // namespace

GptConfig tiny_model(const ParityCase& test) {
  const auto& [tp, pp, dp, architecture, sequence, zero_stage, ep, whole_experts] = test;
  GptConfig c;
  c.num_layers = 5;
  c.hidden_size = 16;
  c.num_attention_heads = 4;
  c.seq_length = sequence ? 8 : 6;
  c.max_position_embeddings = 9;
  c.make_vocab_size_divisible_by = 3;
  c.vocab_size = 17;
  c.init_method_std = 0.2;
  c.attention_dropout = c.hidden_dropout = 0;
  c.eod_token = 3;  // one token in ten
  const auto& [name, flags, more] = kArchitectures[architecture_of(test)];
  c = with_flags(c, std::string(flags) + more);
  if (architecture != "gpt" && architecture != "untied") c.num_layers = 3;
  if (c.num_key_value_heads > 0) c.num_key_value_heads = std::max(c.num_key_value_heads, tp);
  return c;
}

std::vector<ParityCase> parity_cases() { return covering(pairs_and_shards_of); }
std::vector<ParityCase> dropout_cases() { return covering(pairs_of); }

std::string name_of_case(const testing::TestParamInfo<ParityCase>& info) {
  const auto& [tp, pp, dp, architecture, sequence, zero_stage, ep, whole_experts] = info.param;
  return "tp" + std::to_string(tp) + "pp" + std::to_string(pp) + "dp" + std::to_string(dp) +
         architecture + (sequence ? "sequence" : "") +
         (zero_stage > 0 ? "zero" + std::to_string(zero_stage) : "") +
         (ep > 1 ? "ep" + std::to_string(ep) : "") + (whole_experts ? "whole" : "");
}

}  // namespace anymesh
