#include "tools/plot/recorded_run.h"

#include <algorithm>
#include <cmath>

#include "framework/config/command_line.h"
#include "framework/config/parse.h"
#include "framework/util/errors.h"
#include "framework/util/input_file.h"
#include "framework/util/json.h"
#include "framework/util/parse_number.h"
#include "framework/util/shell_word.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::string_view kStart = "{\"event\":";
constexpr int kMostRanks = 1'000'000;
constexpr double kMost = 1e15;  // bytes, seconds, calls

// Returns a number from 0 on; `otherwise` for anything else.
double number_of(const json& object, const char* key, double otherwise = 0) {
  const json value = member(object, key);
  const double number = value.is_number() ? value.get<double>() : -1;
  return number >= 0 && number <= kMost ? number : otherwise;
}

int64_t integer_of(const json& object, const char* key) {
  return static_cast<int64_t>(number_of(object, key));
}

std::string string_of(const json& object, const char* key) {
  const json value = member(object, key);
  return value.is_string() ? value.get<std::string>() : "";
}

// Returns the items of an array, as many as a run of ours has.
std::vector<json> items_of(const json& object, const char* key) {
  constexpr size_t kMostItems = 1000;
  const json array = member(object, key);
  if (!array.is_array()) return {};
  return {array.begin(), array.begin() + std::min<ptrdiff_t>(std::ssize(array), kMostItems)};
}

// Returns texts in two parts: what stands before `between`, and the rest.
RecordedRun::Pairs pairs_of(const std::vector<json>& texts, const std::string& between) {
  RecordedRun::Pairs pairs;
  for (const json& each : texts) {
    if (!each.is_string()) continue;
    const auto text = each.get<std::string>();
    const size_t end = std::min(text.find(between), text.size());
    pairs.emplace_back(text.substr(0, end),
                       text.substr(std::min(end + between.size(), text.size())));
  }
  return pairs;
}

void forget_steps_from(int64_t iteration, RecordedRun& run) {
  while (!run.steps.empty() && run.steps.back().iteration >= iteration) run.steps.pop_back();
}

void read_start(const json& line, RecordedRun& run) {
  const json mesh = member(line, "mesh");
  const auto size = [&](const char* name) {
    return static_cast<int>(std::min<double>(number_of(mesh, name), kMostRanks + 1));
  };
  run.mesh = {.pp_size = size("pp"),
              .dp_size = size("dp"),
              .tp_size = size("tp"),
              .ep_size = std::max(size("ep"), 1)};
  run.parameters = integer_of(line, "largest_rank");
  run.vocabulary = static_cast<int>(std::min<double>(number_of(line, "vocabulary"), INT32_MAX));
  run.facts = pairs_of(items_of(line, "facts"), ": ");
  run.flags = pairs_of(items_of(line, "flags"), " ");
  const int64_t iteration = integer_of(line, "iteration");
  if (iteration > 0) run.resumes.push_back(iteration);
  forget_steps_from(iteration + 1, run);
}

void read_step(const json& line, RecordedRun& run) {
  const std::string text = string_of(line, "lm_loss");
  const double loss = parse_number<double>(text).value_or(NAN);
  if (!std::isfinite(loss)) return;
  const int64_t iteration = integer_of(line, "iteration");
  forget_steps_from(iteration, run);
  run.steps.push_back({iteration, loss, text});
}

void read_save(const json& line, RecordedRun& run) {
  const json seconds = member(line, "seconds");
  const auto ms = [&](const char* part) { return 1e3 * number_of(seconds, part); };
  RecordedRun::Save save{
      .iteration = integer_of(line, "iteration"), .stall = ms("stall"), .total = ms("total")};
  std::ranges::transform(kSaveParts, save.parts.begin(), ms);
  run.saves.push_back(save);
}

void read_memory(const json& line, RecordedRun& run) {
  run.memory.clear();
  for (const json& row : items_of(line, "rows")) {
    run.memory.push_back({string_of(row, "part"), number_of(row, "bytes"), {}});
    if (member(row, "closed_form").is_number())
      run.memory.back().closed_form = number_of(row, "closed_form");
  }
}

void read_traffic(const json& line, RecordedRun& run) {
  run.traffic.emplace();
  for (const json& row : items_of(line, "rows"))
    run.traffic->push_back({string_of(row, "group"), string_of(row, "verb"),
                            integer_of(row, "calls"), integer_of(row, "bytes"),
                            integer_of(row, "most_calls"), integer_of(row, "most_bytes")});
}

void read_end(const json& line, RecordedRun& run) {
  run.seconds_per_step = number_of(line, "seconds_per_step");
  run.peak_memory = number_of(line, "peak_memory");
  run.peak_memory_of = string_of(line, "peak_memory_of");
}

void set_flag(FlagTable& flags, const std::string& words) {
  try {
    read_command_line(flags, shell_words(words));
  } catch (const UserError& error) {
    throw_error("'", words, "': ", error.what());
  }
}

constexpr std::pair<const char*, void (*)(const json&, RecordedRun&)> kReaders[] = {
    {"start", read_start},
    {"step", read_step},
    {"save", read_save},
    {"memory", read_memory},
    {"communication", read_traffic},
    {"end", read_end},
    {"profile", [](const json& line, RecordedRun& run) { run.profile = string_of(line, "table"); }},
    {"validation",
     [](const json& line, RecordedRun& run) { run.validation = number_of(line, "lm_loss"); }}};

}  // namespace

std::string RecordedRun::flag(std::string_view name) const {
  const auto found = std::ranges::find(flags, name, &std::pair<std::string, std::string>::first);
  return found == flags.end() ? "" : found->second;
}

bool is_record(std::string_view start) { return start.starts_with(kStart); }

RecordedRun read_record(const fs::path& path) {
  RecordedRun run{.path = path, .mesh = {0, 0, 0}};
  InputFile file(path);
  for (std::string text; std::getline(file, text);) {
    const json line = json::parse(bounded(std::move(text), path), nullptr, false);
    const std::string event = string_of(line, "event");
    for (const auto& [name, read] : kReaders)
      if (event == name) read(line, run);
  }
  const Topology& mesh = run.mesh;
  if (mesh.pp_size < 1 || mesh.dp_size < 1 || mesh.tp_size < 1 ||
      double(mesh.pp_size) * mesh.dp_size * mesh.tp_size > kMostRanks)
    throw_error<DamagedFile>(path.string(), ": expected the start of a run with a mesh of 1 to ",
                             kMostRanks, " ranks, as pretrain_gpt --loss-csv writes it");
  return run;
}

RecordedRun record_of(const fs::path& path) {
  std::string start(kStart.size(), '\0');
  InputFile(path).read(start.data(), static_cast<std::streamsize>(start.size()));
  if (is_record(start)) return read_record(path);
  const fs::path beside = fs::path(path).replace_extension(".jsonl");
  if (!fs::exists(beside))
    throw_error(path.string(), ": is no record of a run, and there is no ", beside.string(),
                ": run pretrain_gpt with --loss-csv ",
                fs::path(path).replace_extension(".csv").string(),
                ", which writes it; versions before it wrote none");
  return read_record(beside);
}

RunSettings settings_of(const RecordedRun& run) {
  RunSettings settings;
  auto& [config, gpt, plan] = settings;
  FlagTable flags("pretrain_gpt", "");
  add_flags(flags, config);
  add_flags(flags, gpt);
  for (const auto& [name, value] : run.flags) set_flag(flags, name + " " + value);
  if (run.vocabulary > 0) gpt.vocab_size = run.vocabulary;
  if (config.parallel.tp != run.mesh.tp_size || config.parallel.pp != run.mesh.pp_size)
    throw_error("its mesh does not fit its flags");
  if (config.batch.global_batch_size == 0 && !config.run.deepspeed_config.empty())
    throw_error("--global-batch-size is in ", config.run.deepspeed_config,
                " alone; give the flag to the run as well");
  validate(config, gpt, run.mesh.world_size());
  gpt = resolved(gpt);
  plan = plan_batches(config, run.mesh.world_size());
  return settings;
}

}  // namespace anymesh
