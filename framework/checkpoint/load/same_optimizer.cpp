#include "framework/checkpoint/load/same_optimizer.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "framework/comm/agreement.h"
#include "framework/format/layout.h"
#include "framework/optim/adamw.h"

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

// Returns the name of the optimizer that the settings of a parameter group show, or "". An AdamW of
// DeepSpeed or torch shows none.
std::string optimizer_of(const Value& group) {
  const Value name = group.find(keys::kOptimizerName);
  if (is(group, "amsgrad", true)) return "Adam with amsgrad";
  if (is(group, "maximize", true)) return "an optimizer that maximizes the loss (maximize)";
  if (is(group, "bias_correction", false)) return "Adam without bias correction";
  if (group.contains("max_grad_norm") || group.contains("max_coeff")) return "LAMB";
  if (group.contains("momentum_decay")) return "NAdam";
  const bool torchs = group.contains("decoupled_weight_decay");
  if (torchs && !group.contains("amsgrad")) return "RAdam";
  if (is(group, "decoupled_weight_decay", false) && decays(group))
    return "Adam with L2 regularization (decoupled_weight_decay is False)";
  if (name.is_string()) return name.as_string();
  if (const Value muon = group.find(keys::kUseMuon)) return muon.as_bool() ? "Muon" : "";
  if (!group.contains("momentum") || group.contains("betas")) return "";
  if (is(group, "nesterov", true)) return "SGD with Nesterov's momentum";
  if (const Value dampening = group.find("dampening"); dampening && dampening.as_double() != 0)
    return "SGD with dampening";
  return "SGD";
}

// Returns the same for the optimizer that a DeepSpeed config names.
std::string configured_optimizer(const Value& chosen, bool with_decay) {
  const auto lower = [](std::string text) {
    std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
    return text;
  };
  const std::string given = chosen.find("type").value_or("").as_string(), type = lower(given);
  const Value params = chosen.find("params").value_or(Value::dict());
  if (type == "adam" && with_decay && is(params, "adam_w_mode", false))
    return "Adam with L2 regularization (adam_w_mode is false)";
  if (type == "adam") return "AdamW";
  for (const char* name : {"AdamW", "SGD", "Lion", "Muon"})
    if (lower(name) == type) return name;
  return given;
}

// Returns the dicts that may hold torch's `param_groups` or `state`, at any ZeRO stage.
std::vector<Value> holders_of(const Value& optimizer_state) {
  if (!optimizer_state.is_dict()) return {};
  std::vector<Value> holders{optimizer_state};
  for (const auto key : {keys::kBaseOptimizerState, keys::kOptimizerStateDict})
    if (const Value inner = optimizer_state.find(key); inner.is_dict()) holders.push_back(inner);
  return holders;
}

// Returns the names of the states.
std::set<std::string> states_of(const Value& optimizer_state) {
  std::set<std::string> names;
  for (const Value& holder : holders_of(optimizer_state)) {
    const Value states = holder.find(keys::kState);
    if (!states.is_dict()) continue;
    for (const auto& [group, state] : states.entries())
      for (const auto& [name, value] :
           state.is_dict() ? state.entries() : std::vector<Value::Entry>())
        names.insert(name.is_string() ? name.as_string() : name.found());
  }
  return names;
}

// Returns "0.9", or "0.9, 0.95" for a tuple, as printf has numbers.
std::string words_of(const Value& value) {
  if (value.is_list() || value.kind() == Value::Kind::kTuple) {
    std::string text;
    for (const Value& item : value.items()) text += (text.empty() ? "" : ", ") + words_of(item);
    return text;
  }
  return value.is_number() ? c10::str(value.as_double()) : value.found();
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

bool has_state(const Optimizer& optimizer, const Value& name) {
  if (name == Value(kStepState)) return true;  // Muon's AdamW has one, and SGD may
  return std::ranges::any_of(optimizer.states(),
                             [&](const std::string& own) { return name == Value(own); });
}

void check_same_optimizer(const Value& metadata, const Value& optimizer_state,
                          const CheckpointedRun& run) {
  const Optimizer& ours = run.optimizer.optimizer();
  std::set<std::string> named;
  bool with_decay = false;
  for (const Value& group : groups_of(optimizer_state)) {
    with_decay |= decays(group);
    if (const std::string name = optimizer_of(group); !name.empty()) named.insert(name);
    const Value version = group.find(keys::kOptimizerVersion);
    TORCH_CHECK(!version || group.find(keys::kOptimizerName) != Value(ours.name()) ||
                    version.as_int() == ours.version(),
                metadata.where(), ": the optimizer's state is of version ", version.found(), " of ",
                ours.name(), ", and this run has version ", ours.version(), kWeightsAlone);
  }
  if (named.contains("Muon")) named.erase("AdamW");  // which has the rest
  const Value config = metadata.find(keys::kDsConfig).value_or(Value::dict()),
              chosen = config.is_dict() ? config.find("optimizer") : Value();
  if (named.empty() && chosen.is_dict())
    if (const std::string name = configured_optimizer(chosen, with_decay); !name.empty())
      named.insert(name);
  const std::set<std::string> states = states_of(optimizer_state);
  if (named.empty() && !states.contains(std::string(kExpAvgSqState))) {
    if (states.contains(std::string(kExpAvgState))) named.insert("Lion");
    if (states.contains(std::string(kMomentumState))) named.insert("SGD");
  }
  const auto other =
      std::ranges::find_if(named, [&](const std::string& name) { return name != ours.name(); });
  TORCH_CHECK(other == named.end(), metadata.where(), ": the optimizer's state is of ", *other,
              ", and this run's ", ours.name(), " cannot go on with it (--optimizer)",
              kWeightsAlone);
  for (const std::string& state : states) {
    bool known = has_state(ours, state);
    for (const auto& group : run.optimizer.groups()) known |= has_state(*group.optimizer, state);
    TORCH_CHECK(known || run.optimizer.groups().empty(), metadata.where(),
                ": has the optimizer state ", state, ", which this run's ", ours.name(), " has not",
                kWeightsAlone);
  }
}

void check_second_moments(const ZeroOptimizer& optimizer, const std::filesystem::path& folder) {
  constexpr double kSquareVanishes = 1e-15;  // in float32
  const std::vector<std::string> adams = AdamW().states();
  for (const auto& group : optimizer.groups()) {
    if (group.optimizer->states() != adams) continue;
    for (const auto& piece : group.pieces) {
      TORCH_CHECK(not_zero(piece.states[1], 0) || !not_zero(piece.states[0], kSquareVanishes),
                  folder.string(), ": exp_avg_sq of ", group.params[piece.param].name,
                  " is zero, but exp_avg is not: the state is of an optimizer without a second "
                  "moment, such as SGD with momentum",
                  kWeightsAlone);
    }
  }
}

std::vector<std::string> announce_hyperparameters(const Value& optimizer_state,
                                                  const CheckpointedRun& run) {
  double decay = 0;
  std::map<std::string, Optimizer::Setting> ours;
  for (const auto& group : run.optimizer.groups()) {
    decay = std::max(decay, group.weight_decay);
    for (const Optimizer::Setting& setting : group.optimizer->settings())
      if (!setting.flag.empty()) ours.emplace(setting.key, setting);
  }
  std::vector<std::string> lines;
  const auto say = [&](const std::string& what, const std::string& theirs, const std::string& mine,
                       const std::string& flag) {
    lines.push_back(c10::str("the checkpoint's run had ", what, " of ", theirs,
                             "; this one goes on with ", mine, ", as its flags say (", flag, ")"));
  };
  std::set<double> decays, rates;
  for (const Value& group : groups_of(optimizer_state)) {
    for (auto setting = ours.begin(); setting != ours.end();) {
      const Value theirs = group.find(setting->first);
      const std::string text = words_of(theirs), mine = words_of(setting->second.value);
      const bool differs = theirs && text != mine;
      if (differs) say(setting->first, text, mine, setting->second.flag);
      setting = differs ? ours.erase(setting) : std::next(setting);
    }
    if (const Value theirs = group.find(keys::kWeightDecay)) decays.insert(theirs.as_double());
    const double scale =
        is(group, keys::kUseMuon.data(), true) ? run.optimizer.optimizer().lr_scale() : 1;
    if (const Value theirs = group.find("lr")) rates.insert(theirs.as_double() / scale);
  }
  // A group without weight decay is beside the one with it. None: theirs is frozen. Without groups
  // of ours, this rank's stage is.
  if (!decays.empty() && !run.optimizer.groups().empty() && *decays.rbegin() != decay)
    say("a weight decay", c10::str(*decays.rbegin()), c10::str(decay), "--weight-decay");
  if (rates.size() > 1 && *rates.rbegin() - *rates.begin() > 1e-9 * *rates.rbegin())
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
  std::string text = c10::str(
      "the checkpoint has no moments of these parameters, as they were not "
      "trained: ",
      c10::Join(", ", names), ". With zeros at step ", run.optimizer.steps);
  if (run.optimizer.optimizer().counts_steps()) {
    const auto [beta1, beta2, eps] = run.optimizer.config().optimizer.adam;
    const double first = (1 - beta1) / (1 - std::pow(beta1, step)) *
                         std::sqrt((1 - std::pow(beta2, step)) / (1 - beta2));
    text += c10::str(" their first update is ", std::round(first * 100) / 100,
                     " times the learning rate, in place of the 1 of Adam's first step");
  } else {
    text += " their momentum has yet to grow";
  }
  if (!allowed)
    throw CollectiveError(text +
                          "; --allow-fresh-moments accepts that, --no-load-optim starts all "
                          "moments afresh");
  return text + " (--allow-fresh-moments)";
}

}  // namespace anymesh
