#include "framework/checkpoint/load/same_optimizer.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "framework/comm/agreement.h"
#include "framework/format/layout.h"

namespace anymesh {
namespace {

constexpr int64_t kBlock = int64_t{1} << 20;
constexpr const char* kWeightsAlone = "; --no-load-optim or --finetune load the weights alone";

bool is(const Value& group, const char* key, bool value) {
  const Value found = group.find(key);
  return found.kind() == Value::Kind::kBool && found.as_bool() == value;
}

bool decays(const Value& group) {
  return group.find(keys::kWeightDecay).value_or(0).as_double() != 0;
}

// Returns the name of another optimizer that the settings of a parameter group show, or "".
std::string other_optimizer(const Value& group) {
  const Value name = group.find(keys::kOptimizerName);
  if (name.is_string() && name.as_string() != kAdamW) return name.as_string();
  if (is(group, "amsgrad", true)) return "Adam with amsgrad";
  if (is(group, "maximize", true)) return "an optimizer that maximizes the loss (maximize)";
  if (is(group, "bias_correction", false)) return "Adam without bias correction";
  if (group.contains("max_grad_norm") || group.contains("max_coeff")) return "LAMB";
  if (group.contains("momentum_decay")) return "NAdam";
  const bool torchs = group.contains("decoupled_weight_decay");
  if (torchs && !group.contains("amsgrad")) return "RAdam";
  if (is(group, "decoupled_weight_decay", false) && decays(group))
    return "Adam with L2 regularization (decoupled_weight_decay is False)";
  if (group.contains("momentum") && !group.contains("betas")) return "SGD with momentum";
  return "";
}

// Returns the same for the optimizer that a DeepSpeed config names.
std::string other_optimizer(const Value& chosen, bool with_decay) {
  std::string type = chosen.find("type").value_or("").as_string();
  std::ranges::transform(type, type.begin(), [](unsigned char c) { return std::tolower(c); });
  if (type.empty() || type == "adamw") return "";
  if (type != "adam") return chosen.at("type").as_string();
  const Value params = chosen.find("params").value_or(Value::dict());
  return with_decay && is(params, "adam_w_mode", false)
             ? "Adam with L2 regularization (adam_w_mode is false)"
             : "";
}

// Returns the dicts that may hold torch's `param_groups` or `state`, at any ZeRO stage.
std::vector<Value> holders_of(const Value& optimizer_state) {
  if (!optimizer_state.is_dict()) return {};
  std::vector<Value> holders{optimizer_state};
  for (const auto key : {keys::kBaseOptimizerState, keys::kOptimizerStateDict})
    if (const Value inner = optimizer_state.find(key); inner.is_dict()) holders.push_back(inner);
  return holders;
}

// Returns the name of a state, such as NAdam's number mu_product, that Adam lacks, or "".
std::string foreign_state(const Value& optimizer_state) {
  for (const Value& holder : holders_of(optimizer_state)) {
    const Value states = holder.find(keys::kState);
    if (!states.is_dict()) continue;
    for (const auto& [group, state] : states.entries())
      for (const auto& [name, value] :
           state.is_dict() ? state.entries() : std::vector<Value::Entry>())
        if (!is_adams_state(name)) return name.is_string() ? name.as_string() : name.found();
  }
  return "";
}

std::vector<Value> groups_of(const Value& optimizer_state) {
  for (const Value& holder : holders_of(optimizer_state))
    if (const Value groups = holder.find(keys::kParamGroups)) return groups.items();
  return {};
}

// Returns up to kBlock elements from `begin` on, in memory.
torch::Tensor block_at(const StateTensor& state, int64_t begin) {
  const int64_t count = std::min(kBlock, state.numel() - begin);
  if (state.tensor().defined()) return state.tensor().narrow(0, begin, count);
  const torch::Tensor block = torch::empty({count}, state.dtype());
  state.start_read(begin, block).get();
  return block;
}

bool not_zero(const StateTensor& state, double above) {
  for (int64_t begin = 0; begin < state.numel(); begin += kBlock)
    if (block_at(state, begin).abs().max().item<double>() > above) return true;
  return false;
}

}  // namespace

int64_t common_step(Communicator& world, const StepsRead& mine,
                    const std::filesystem::path& folder) {
  std::vector<std::string> lines;
  for (const auto& [step, name] : mine) lines.insert(lines.end(), {std::to_string(step), name});
  const std::vector<std::string> all = gather_lines(world, lines);
  for (size_t i = 2; i < all.size(); i += 2)
    if (all[i] != all[0])
      throw CollectiveError(c10::str(folder.string(), ": the optimizer made ", all[0], " steps on ",
                                     all[1], ", but ", all[i], " on ", all[i + 1],
                                     ", and this one has one count for all", kWeightsAlone));
  return all.empty() ? 0 : std::stoll(all[0]);
}

bool is_adams_state(const Value& name) {
  return name == Value(kExpAvgState) || name == Value(kExpAvgSqState) || name == Value(kStepState);
}

void check_same_optimizer(const Value& metadata, const Value& optimizer_state) {
  std::string other;
  bool with_decay = false;
  for (const Value& group : groups_of(optimizer_state)) {
    with_decay |= decays(group);
    if (other.empty()) other = other_optimizer(group);
  }
  const Value config = metadata.find(keys::kDsConfig).value_or(Value::dict()),
              chosen = config.is_dict() ? config.find("optimizer") : Value();
  if (other.empty() && chosen.is_dict()) other = other_optimizer(chosen, with_decay);
  const std::string state = foreign_state(optimizer_state);
  TORCH_CHECK(state.empty() || !other.empty(), metadata.where(), ": has the optimizer state ",
              state, ", which this trainer's AdamW has not", kWeightsAlone);
  TORCH_CHECK(other.empty(), metadata.where(), ": the optimizer's state is of ", other,
              ", and this trainer's AdamW cannot go on with it", kWeightsAlone);
}

void check_second_moments(const ZeroOptimizer& optimizer, const std::filesystem::path& folder) {
  constexpr double kSquareVanishes = 1e-15;  // in float32
  for (const auto& group : optimizer.groups()) {
    for (const auto& piece : group.pieces) {
      TORCH_CHECK(not_zero(piece.exp_avg_sq, 0) || !not_zero(piece.exp_avg, kSquareVanishes),
                  folder.string(), ": exp_avg_sq of ", group.params[piece.param].name,
                  " is zero, but exp_avg is not: the state is of an optimizer without a second "
                  "moment, such "
                  "as SGD with momentum",
                  kWeightsAlone);
    }
  }
}

std::vector<std::string> announce_hyperparameters(const Value& optimizer_state,
                                                  const CheckpointedRun& run) {
  const AdamOptions& adam = run.optimizer.config().adam;
  double decay = 0;
  for (const auto& group : run.optimizer.groups()) decay = std::max(decay, group.weight_decay);
  std::set<double> beta1, beta2, eps, decays, rates;
  for (const Value& group : groups_of(optimizer_state)) {
    const auto note = [](const Value& value, std::set<double>& seen) {
      if (value) seen.insert(value.as_double());
    };
    if (const Value betas = group.find("betas")) {
      note(betas.at(0), beta1);
      note(betas.at(1), beta2);
    }
    note(group.find("eps"), eps);
    note(group.find(keys::kWeightDecay), decays);
    note(group.find("lr"), rates);
  }
  std::vector<std::string> lines;
  const auto compare = [&](const char* what, const std::set<double>& theirs, double ours,
                           const char* flag) {
    // A group without weight decay is beside the one with it. None: theirs is frozen.
    if (theirs.empty() || *theirs.rbegin() == ours) return;
    lines.push_back(c10::str("the checkpoint's run had ", what, " of ", *theirs.rbegin(),
                             "; this one goes on with ", ours, ", as its flags say (", flag, ")"));
  };
  compare("a beta1", beta1, adam.beta1, "--adam-beta1");
  compare("a beta2", beta2, adam.beta2, "--adam-beta2");
  compare("an epsilon", eps, adam.eps, "--adam-eps");
  if (!run.optimizer.groups().empty())  // else this rank's stage is frozen
    compare("a weight decay", decays, decay, "--weight-decay");
  if (rates.size() > 1)
    lines.push_back(c10::str("the checkpoint's groups of parameters had learning rates from ",
                             *rates.begin(), " to ", *rates.rbegin(),
                             "; this run has one for all (--lr)"));
  return lines;
}

std::string announce_fresh(const CheckpointedRun& run, const std::vector<std::string>& fresh,
                           bool allowed) {
  const std::vector<std::string> all = gather_lines(*run.grid.world, fresh);
  const std::set<std::string> names(all.begin(), all.end());
  const auto step = static_cast<double>(run.optimizer.steps) + 1;
  if (names.empty() || step == 1) return "";
  const auto [beta1, beta2, eps] = run.optimizer.config().adam;
  const double first = (1 - beta1) / (1 - std::pow(beta1, step)) *
                       std::sqrt((1 - std::pow(beta2, step)) / (1 - beta2));
  const std::string text =
      c10::str("the checkpoint has no moments of these parameters, as they were not trained: ",
               c10::Join(", ", names), ". With zeros at step ", run.optimizer.steps,
               " their first update is ", std::round(first * 100) / 100,
               " times the learning rate, in place of the 1 of Adam's first step");
  if (!allowed)
    throw CollectiveError(text +
                          "; --allow-fresh-moments accepts that, --no-load-optim starts all "
                          "moments afresh");
  return text + " (--allow-fresh-moments)";
}

}  // namespace anymesh
