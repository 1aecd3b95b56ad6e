#include "tools/report/training_log.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <sstream>

#include "framework/util/format.h"
#include "framework/util/input_file.h"
#include "framework/util/parse_number.h"

namespace anymesh {
namespace {

constexpr std::string_view kMeshLine = "mesh: tensor ", kProfileLine = "profile of iteration ",
                           kTrafficLine = "communication in the last step";
constexpr size_t kMostFlags = 1000, kMostSaves = 10000, kMostRows = 200, kMostProfile = 64;

// Returns the text behind `start`, if the line begins with it.
std::optional<std::string> after(const std::string& line, std::string_view start) {
  if (!line.starts_with(start)) return std::nullopt;
  return line.substr(start.size());
}

// Returns the number behind the last `word` of a line.
std::optional<int64_t> number_behind(const std::string& line, std::string_view word) {
  const size_t at = line.rfind(word);
  if (at == std::string::npos) return std::nullopt;
  const size_t begin = at + word.size(), end = line.find_first_not_of("0123456789", begin);
  return parse_number<int64_t>(std::string_view(line).substr(begin, end - begin));
}

std::vector<std::string> words_of(const std::string& line) {
  std::istringstream in(line);
  std::vector<std::string> words;
  for (std::string word; in >> word && words.size() < 64;) words.push_back(word);
  return words;
}

// "memory: kept between steps, by part   0.849   0.849": the closed form may be missing.
void read_memory(const std::string& line, TrainingLog& log) {
  const std::vector<std::string> words = words_of(line);
  std::vector<double> numbers;
  size_t end = words.size();
  for (; end > 0 && numbers.size() < 2; --end) {
    const auto number = parse_number<double>(words[end - 1]);
    if (!number || !(*number >= 0 && *number < 1e15)) break;
    numbers.insert(numbers.begin(), *number);
  }
  if (numbers.empty() || end == 0 || log.memory.size() == kMostRows) return;
  TrainingLog::Memory row{.part = joined({words.begin(), words.begin() + end}, " "),
                          .allocated = numbers[0]};
  if (numbers.size() == 2) row.closed_form = numbers[1];
  log.memory.push_back(row);
}

// "tp   all_reduce   25   17920   25   17920"; returns whether the line is of that form.
bool read_traffic(const std::string& line, TrainingLog& log) {
  const std::vector<std::string> words = words_of(line);
  if (words.size() != 6 || log.traffic.size() == kMostRows) return false;
  int64_t numbers[4];
  for (int i = 0; i < 4; ++i) {
    const auto number = parse_number<int64_t>(words[i + 2]);
    if (!number || *number < 0) return false;
    numbers[i] = *number;
  }
  log.traffic.push_back({words[0], words[1], numbers[0], numbers[1], numbers[2], numbers[3]});
  return true;
}

void read_flag(const std::string& line, TrainingLog& log) {
  if (log.flags.size() == kMostFlags) return;
  const size_t space = std::min(line.find(' ', 2), line.size());
  log.flags.emplace_back(line.substr(2, space - 2), line.substr(std::min(space + 1, line.size())));
}

// Reads one of the lines that stand alone.
void read_line(const std::string& line, TrainingLog& log) {
  if (const auto rest = after(line, "memory: "); rest && !rest->starts_with("MiB")) {
    read_memory(*rest, log);
  } else if (line.starts_with("saved ") && log.saves.size() < kMostSaves) {
    if (const auto step = number_behind(line, "global_step")) log.saves.push_back({*step, line});
  } else if (line.starts_with("loaded ") && log.loads.size() < kMostSaves) {
    if (const auto step = number_behind(line, ": iteration ")) log.loads.push_back({*step, line});
  } else if (const auto ending = after(line, "done: ")) {
    log.ending = *ending;
  } else if (line.starts_with("validation loss at the end")) {
    if (const size_t colon = line.find(": "); colon != std::string::npos)
      log.validation =
          words_of(line.substr(colon + 2)).empty() ? "" : words_of(line.substr(colon + 2))[0];
  }
}

// Reads a line of the start: facts, notes and flags, up to the first step.
void read_start(const std::string& line, TrainingLog& log) {
  std::sscanf(line.c_str(), "mesh: tensor %4d x pipeline %4d x data %4d", &log.mesh.tp_size,
              &log.mesh.pp_size, &log.mesh.dp_size);
  std::sscanf(line.c_str(), "  --zero-stage %4d", &log.zero_stage);
  if (const auto size = number_behind(line, "; vocabulary of "))
    log.vocabulary = static_cast<int>(std::min<int64_t>(*size, INT32_MAX));
  if (line.starts_with("  ")) return read_flag(line, log);
  const size_t colon = line.find(": ");
  if (colon == std::string::npos || log.facts.size() == kMostRows) return;
  for (const char* fact : {"mesh", "device", "model", "memory kept between steps", "data", "note"})
    if (line.compare(0, colon, fact) == 0) log.facts.emplace_back(fact, line.substr(colon + 2));
}

}  // namespace

bool TrainingLog::has_flag(std::string_view name) const {
  return std::ranges::any_of(flags, [&](const auto& flag) { return flag.first == name; });
}

std::string TrainingLog::flag(std::string_view name) const {
  for (const auto& [flag, value] : flags)
    if (flag == name) return value;
  return "";
}

bool is_training_log(std::string_view start) {
  return start.starts_with(kMeshLine) ||
         start.find("\n" + std::string(kMeshLine)) != std::string_view::npos;
}

TrainingLog read_training_log(const std::filesystem::path& path) {
  TrainingLog log{.path = path};
  InputFile file(path);
  bool started = false, stepped = false;  // whether the mesh, whether a step was seen
  size_t profile_left = 0;
  bool in_traffic = false;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(kMeshLine)) started = true, stepped = false;
    stepped = stepped || line.starts_with("iter ");
    if (started && !stepped) read_start(line, log);
    if (in_traffic && !line.starts_with("group ")) in_traffic = read_traffic(line, log);
    if (profile_left > 0) {
      // The table is made of rows that end in a number, or in the last heading's word.
      const bool row = !line.starts_with("iter ") && !line.starts_with("done:");
      profile_left = row ? profile_left - 1 : 0;
      if (row) log.profile += line.substr(0, 200) + "\n";
    }
    if (line.starts_with(kProfileLine)) profile_left = kMostProfile, log.profile = line + "\n";
    if (line.starts_with(kTrafficLine)) {
      in_traffic = log.reports_traffic = true;
      log.traffic.clear();
    }
    if (line == "no communication in the last step") log.reports_traffic = true;
    if (line.starts_with("memory: MiB")) log.memory.clear();
    read_line(line, log);
  }
  return log;
}

}  // namespace anymesh
