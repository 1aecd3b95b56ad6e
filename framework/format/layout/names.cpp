#include "framework/format/layout/names.h"

#include <cctype>
#include <charconv>
#include <stdexcept>

#include "framework/format/io/file_io.h"
#include "framework/util/errors.h"
#include "framework/util/printable.h"

namespace anymesh {
namespace {

constexpr std::string_view kModelSuffix = "_model_states.pt";
constexpr std::string_view kOptimSuffix = "_optim_states.pt";

// At least two digits, as Python's ":02d".
std::string two_digits(int n) { return (n < 10 ? "0" : "") + std::to_string(n); }

bool take(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

template <typename T>
bool take_number(std::string_view& text, T& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 0) return false;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return true;
}

// Takes the beginning of an expert's file name.
bool take_expert(std::string_view& text, CheckpointFileName& parsed) {
  std::string_view rest = text;
  CheckpointFileName found;
  if (take(rest, "expp_rank_")) {
    found.kind = CheckpointFileName::Kind::kExpertOptim;
    if (!take_number(rest, found.ep_rank)) return false;
  } else {
    found.kind = CheckpointFileName::Kind::kExpert;
    if (take(rest, "layer_") && !(take_number(rest, found.layer) && take(rest, "_"))) return false;
    if (!take(rest, "expert_") || !take_number(rest, found.expert)) return false;
  }
  if (!take(rest, "_mp_rank_")) return false;
  text = rest;
  parsed = found;
  return true;
}

}  // namespace

std::string tag_folder(int64_t step) { return "global_step" + std::to_string(step); }

std::optional<int64_t> step_of_tag(std::string_view tag, std::string_view suffix) {
  int64_t step = 0;
  const bool is_tag = take(tag, "global_step") && take_number(tag, step) && tag == suffix;
  return is_tag ? std::optional(step) : std::nullopt;
}

TagsByStep tags_by_step(const std::filesystem::path& folder, std::string_view suffix) {
  TagsByStep tags;
  if (!std::filesystem::is_directory(folder)) return tags;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    const auto step = step_of_tag(name, suffix);
    if (step && entry.is_directory()) tags.emplace(*step, name);
  }
  return tags;
}

std::string model_states_file(int mp_rank) {
  return "mp_rank_" + two_digits(mp_rank) + std::string(kModelSuffix);
}

std::string layer_states_file(int layer, int tp_rank) {
  return "layer_" + two_digits(layer) + "-model_" + two_digits(tp_rank) + "-model_states.pt";
}

std::string optim_states_file(int dp_rank, int mp_rank, bool bf16) {
  return std::string(bf16 ? "bf16_" : "") + "zero_pp_rank_" + std::to_string(dp_rank) +
         "_mp_rank_" + two_digits(mp_rank) + std::string(kOptimSuffix);
}

std::string zero3_model_states_file(int dp_rank, int mp_rank) {
  return "zero_pp_rank_" + std::to_string(dp_rank) + "_" + model_states_file(mp_rank);
}

std::string expert_states_file(int layer, int64_t expert, int tp_rank) {
  return "layer_" + std::to_string(layer) + "_expert_" + std::to_string(expert) + "_" +
         model_states_file(tp_rank);
}

std::string expert_optim_states_file(int ep_rank, int mp_rank) {
  return "expp_rank_" + std::to_string(ep_rank) + "_mp_rank_" + two_digits(mp_rank) +
         std::string(kOptimSuffix);
}

std::string state_file(std::string_view state) { return std::string(state) + ".pt"; }

std::optional<CheckpointFileName> parse_checkpoint_file_name(std::string_view name) {
  using Kind = CheckpointFileName::Kind;
  CheckpointFileName parsed;
  if (take_expert(name, parsed)) {
    const bool model = parsed.kind == Kind::kExpert;
    const bool is_whole =
        take_number(name, parsed.mp_rank) && name == (model ? kModelSuffix : kOptimSuffix);
    return is_whole ? std::optional(parsed) : std::nullopt;
  }
  if (take(name, "layer_")) {
    parsed.kind = Kind::kLayer;
    parsed.tp_rank = 0;
    if (!take_number(name, parsed.layer)) return std::nullopt;
    if (take(name, "-model_") && name != "states.pt" && !take_number(name, parsed.tp_rank))
      return std::nullopt;
    return name == "states.pt" || name == "-model_states.pt" ? std::optional(parsed) : std::nullopt;
  }
  parsed.bf16 = take(name, "bf16_");
  if (!parsed.bf16) take(name, "fp16_");  // never written, but read by DeepSpeed
  if (take(name, "zero_pp_rank_")) {
    if (!take_number(name, parsed.dp_rank) || !take(name, "_")) return std::nullopt;
  }
  if (!take(name, "mp_rank_") || !take_number(name, parsed.mp_rank)) return std::nullopt;
  if (name == kOptimSuffix && parsed.dp_rank >= 0) {
    parsed.kind = Kind::kOptimStates;
  } else if (name == kModelSuffix && !parsed.bf16) {
    parsed.kind = parsed.dp_rank >= 0 ? Kind::kZero3ModelStates : Kind::kModelStates;
  } else {
    return std::nullopt;
  }
  return parsed;
}

std::string read_tag(const std::filesystem::path& pointer_file) {
  std::string tag = read_text(pointer_file);
  while (!tag.empty() && std::isspace(static_cast<unsigned char>(tag.back()))) tag.pop_back();
  return tag;
}

bool is_tag_name(std::string_view tag) {
  constexpr size_t kLongestPart = 255, kLongest = 4000;  // file systems' limits
  if (tag.size() > kLongest || tag.find('\0') != std::string_view::npos) return false;
  for (;;) {
    const size_t slash = tag.find('/');
    const std::string_view part = tag.substr(0, slash);
    if (part.empty() || part == "." || part == ".." || part.size() > kLongestPart) return false;
    if (slash == std::string_view::npos) return true;
    tag.remove_prefix(slash + 1);
  }
}

std::filesystem::path folder_of_tag(const std::filesystem::path& root, const std::string& tag,
                                    const std::string& source) {
  const std::string name = tag.substr(0, tag.find_last_not_of('/') + 1);  // completed by a shell
  if (is_tag_name(name) && std::filesystem::is_directory(root / name)) return root / name;
  const std::string there = std::filesystem::is_directory(root) ? list_folder(root) : "nothing";
  throw UserError(source + " names '" + printable(tag) + "', which is not a folder below " +
                  root.string() + "; there are: " + there);
}

}  // namespace anymesh
