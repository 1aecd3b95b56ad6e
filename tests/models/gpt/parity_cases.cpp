#include "tests/models/gpt/parity_cases.h"

#include <algorithm>
#include <set>
#include <utility>

namespace anymesh {
namespace {

struct Architecture {
  const char* name;
  void (*set)(GptConfig& c);
};

void llama(GptConfig& c) {
  c.untie_embeddings_and_output_weights = c.use_rotary_position_embeddings = c.swiglu = true;
  c.ffn_hidden_size = 12;
  c.normalization = "rmsnorm";
  c.add_bias_linear = false;
  c.num_key_value_heads = 2;
}

void documents(GptConfig& c) {
  c.reset_position_ids = c.reset_attention_mask = c.eod_mask_loss = true;
  c.eod_token = 3;  // one token in ten
}

// "gpt" is the one without options. Together these have every option.
const Architecture kArchitectures[] = {
    {"gpt", [](GptConfig&) {}},
    {"untied", [](GptConfig& c) { c.untie_embeddings_and_output_weights = true; }},
    {"llama", llama},
    {"swiglu",
     [](GptConfig& c) {
       c.use_rotary_position_embeddings = c.swiglu = true;
       c.ffn_hidden_size = 12;
       c.rotary_percent = 0.5;
     }},
    {"bloom",
     [](GptConfig& c) {
       c.position_embedding_type = "alibi";
       c.embed_layernorm = true;
       c.hidden_size = 24;
       c.num_attention_heads = 12;  // no power of two, so the slopes differ
     }},
    {"mistral",
     [](GptConfig& c) {
       llama(c);
       c.window_size = "2,0";
     }},
    {"qwen2",
     [](GptConfig& c) {
       llama(c);
       c.add_qkv_bias = true;
     }},
    {"qwen3",
     [](GptConfig& c) {
       llama(c);
       c.qk_layernorm = true;
       c.kv_channels = 6;
       c.add_attention_linear_bias = true;
     }},
    {"olmoe",
     [](GptConfig& c) {
       llama(c);
       c.qk_layernorm = c.qk_layernorm_all_heads = c.apply_layernorm_1p = true;
       c.kv_channels = 6;
       c.num_experts = 3;
       c.moe_router_pre_softmax = true;
     }},
    {"neox",
     [](GptConfig& c) {
       c.position_embedding_type = "rope";
       c.rotary_percent = 0.5;
       c.use_parallel_residual = c.untie_embeddings_and_output_weights = true;
       c.bias_gelu_fusion = false;
     }},
    {"gemma",
     [](GptConfig& c) {
       llama(c);
       c.swiglu = c.untie_embeddings_and_output_weights = false;
       c.geglu = c.apply_layernorm_1p = c.apply_embedding_scaling = c.qk_layernorm = true;
       c.kv_channels = 10;
     }},
    {"opt",
     [](GptConfig& c) {
       c.relu = true;
       c.position_embedding_offset = 2;
     }},
    {"alibi",
     [](GptConfig& c) {
       c.position_embedding_type = "alibi";
       c.window_size = "1,0";
     }},
    {"experts",
     [](GptConfig& c) {
       llama(c);
       c.num_experts = 6;
       c.moe_ffn_hidden_size = 8;
       c.moe_aux_loss_coeff = 0.3;
       c.moe_z_loss_coeff = 0.01;
     }},
    {"expertsmany",
     [](GptConfig& c) {
       llama(c);
       c.moe_shared_expert_gate = true;
       c.num_experts = 8;
       c.moe_router_topk = 3;
       c.moe_shared_expert_intermediate_size = 20;
       c.moe_aux_loss_coeff = 0.3;
     }},
    {"expertsbiased",
     [](GptConfig& c) {
       llama(c);
       c.moe_router_score_function = "sigmoid";
       c.moe_router_enable_expert_bias = true;
       c.moe_router_topk_scaling_factor = 2.5;
       c.num_experts = 6;
       c.moe_ffn_hidden_size = 8;
       c.moe_aux_loss_coeff = 0.3;
     }},
    {"expertsshared",
     [](GptConfig& c) {
       llama(c);
       c.swiglu = false;
       c.geglu = c.moe_router_pre_softmax = c.moe_shared_expert_gate = true;
       c.num_experts = c.moe_router_topk = 3;
       c.moe_layer_freq = {0, 1, 1};
       c.moe_shared_expert_intermediate_size = 20;
       c.moe_aux_loss_coeff = 0.2;
     }},
    {"documents", documents},
    {"documentsllama",
     [](GptConfig& c) {
       llama(c);
       documents(c);
     }},
    {"documentsalibi",
     [](GptConfig& c) {
       documents(c);
       c.position_embedding_type = "alibi";
       c.window_size = "3,0";
       c.reset_position_ids = false;
     }},
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
  for (const ParityCase& test : cases({"mistral", "qwen2", "qwen3", "neox", "gemma", "opt", "alibi",
                                       "experts", "expertsbiased", "expertsshared", "olmoe",
                                       "documents", "documentsllama", "documentsalibi"},
                                      2))
    if (test.dp == test.pp) out.push_back(test);
  return out;
}

// Cases with the sequence cut, at the ZeRO stages that differ most. At tp 1 there is nothing to
// cut.
std::vector<ParityCase> sequence_cases() {
  std::vector<ParityCase> out;
  for (ParityCase test : cases({"gpt", "untied", "llama", "bloom", "gemma", "neox", "documents",
                                "experts", "expertsshared", "olmoe"},
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
  kArchitectures[architecture_of(test)].set(c);
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
