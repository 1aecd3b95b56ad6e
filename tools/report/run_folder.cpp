#include "tools/report/run_folder.h"

#include <algorithm>
#include <map>

#include "framework/format/whole.h"
#include "framework/util/errors.h"
#include "framework/util/input_file.h"
#include "framework/util/plain_words.h"
#include "tools/plot/svg.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;

constexpr int kDeepest = 4;
constexpr size_t kMostEntries = 20000, kMostRuns = 64, kMostCheckpoints = 500, kStart = 16384,
                 kMostName = 80;
constexpr uintmax_t kLargestFile = uintmax_t{256} << 20;

bool is_loss_csv(std::string_view start) {
  const std::vector<std::string> columns =
      split_row(std::string(start.substr(0, start.find('\n'))));
  for (const char* column : {"iteration", "lm_loss"})
    if (std::ranges::find(columns, column) == columns.end()) return false;
  return true;
}

// Returns the kind of a folder that is a checkpoint itself: not one with `latest` beside tags.
std::optional<Checkpoint::Kind> kind_of(const fs::path& folder) {
  try {
    return checkpoint_kind(folder);
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

class Finder {
 public:
  Finder(const fs::path& folder, std::string prefix, RunFolder& found)
      : folder_(folder), prefix_(std::move(prefix)), found_(found) {}

  void find() {
    if (!fs::is_directory(folder_)) throw_error(folder_.string(), ": is no folder of a run");
    const auto kind = kind_of(folder_);  // weights may lie among a run's files
    if (kind && kind != Checkpoint::Kind::kWeights) return add_checkpoint(folder_);
    auto at =
        fs::recursive_directory_iterator(folder_, fs::directory_options::skip_permission_denied);
    for (const auto end = fs::recursive_directory_iterator(); at != end; ++at) {
      if (++entries_ > kMostEntries)
        throw_error(folder_.string(), ": has more than ", kMostEntries,
                    " files and folders, too many for a run's");
      if (at->is_symlink()) continue;
      if (at->is_directory()) {
        const bool checkpoint = kind_of(at->path()).has_value();
        if (checkpoint) add_checkpoint(at->path());
        if (checkpoint || at.depth() >= kDeepest) at.disable_recursion_pending();
      } else if (at->is_regular_file()) {
        trying([&] { add_file(at->path()); });
      }
    }
    join();
  }

 private:
  // Keeps the message of an error as a problem of the folder.
  template <class Read>
  void trying(Read read) {
    try {
      read();
    } catch (const std::exception& error) {
      found_.problems.push_back(printable_message(error));
    }
  }

  std::string name_of(const fs::path& path) const {
    const fs::path name = path == folder_ ? path.filename() : path.lexically_relative(folder_);
    return printable(prefix_ + name.string(), kMostName);
  }

  void add_checkpoint(const fs::path& path) {
    if (found_.checkpoints.size() == kMostCheckpoints)
      throw_error(folder_.string(), ": has more than ", kMostCheckpoints, " checkpoints");
    found_.checkpoints.push_back({name_of(path), path});
  }

  void add_file(const fs::path& path) {
    std::string start(kStart, '\0');
    InputFile file(path);
    file.read(start.data(), kStart);
    start.resize(file.gcount());
    const bool csv = is_loss_csv(start), record = is_record(start), trace = is_trace(start);
    if (!csv && !record && !trace) return;
    if (const uintmax_t size = fs::file_size(path); size > kLargestFile)
      throw_error(path.string(), ": has ", size, " bytes, a report reads at most ", kLargestFile);
    if (csv) curves_[path] = read_loss_csv("run=" + path.string());
    if (record) records_[path] = read_record(path);
    if (trace) traces_[path] = read_trace(path);
  }

  // Removes and returns the file that a record's flag names, or that has the record's own name.
  template <class File>
  std::optional<File> take(std::map<fs::path, File>& files, const RecordedRun& record,
                           std::string_view flag) {
    const std::string named = fs::path(record.flag(flag)).filename().string();
    for (auto each = files.begin(); each != files.end(); ++each) {
      const fs::path& path = each->first;
      if (path.parent_path() != record.path.parent_path()) continue;
      if (named.empty() ? path.stem() != record.path.stem() : path.filename() != named) continue;
      return std::move(files.extract(each).mapped());
    }
    return std::nullopt;
  }

  void join() {
    const auto add = [&](const fs::path& path) -> Run& {
      return found_.runs.emplace_back(Run{.name = name_of(fs::path(path).replace_extension())});
    };
    for (auto& [path, record] : records_) {
      Run& run = add(path);
      run.curve = take(curves_, record, "--loss-csv");
      run.trace = take(traces_, record, "--trace");
      if (!run.curve && !record.steps.empty()) run.curve = LossCurve{"", record.steps};
      run.record = std::move(record);
    }
    for (auto& [path, curve] : curves_) add(path).curve = std::move(curve);
    for (auto& [path, trace] : traces_) add(path).trace = std::move(trace);
  }

  const fs::path folder_;
  const std::string prefix_;
  RunFolder& found_;
  size_t entries_ = 0;
  std::map<fs::path, LossCurve> curves_;
  std::map<fs::path, RecordedRun> records_;
  std::map<fs::path, Trace> traces_;
};

// Returns the place of a run in the order of columns: the first iteration, then the length.
std::pair<int64_t, int64_t> order_of(const Run& run) {
  if (!run.curve) return {INT64_MAX, 0};
  return {run.curve->rows.front().iteration, -static_cast<int64_t>(run.curve->rows.size())};
}

}  // namespace

RunFolder read_run_folders(const std::vector<fs::path>& folders) {
  RunFolder found;
  for (const fs::path& folder : folders) {
    const fs::path name = (folder / "").lexically_normal().parent_path().filename();
    Finder(folder, folders.size() > 1 ? name.string() + "/" : "", found).find();
  }
  if (found.runs.empty() && found.checkpoints.empty() && found.problems.empty())
    throw_error(folders[0].string(),
                ": holds no run: no CSV or record of --loss-csv, no trace, no checkpoint; a log "
                "alone is not read");
  if (found.runs.size() > kMostRuns)
    throw_error("found ", found.runs.size(), " runs, at most ", kMostRuns, " fit into a report");
  std::ranges::stable_sort(found.runs, {}, order_of);
  for (size_t i = 0; i < found.runs.size(); ++i) {
    Run& run = found.runs[i];
    run.color = i == 0 ? "hair" : series(i - 1);  // as loss_plot_svg() has them
    if (run.curve) run.curve->label = run.name;
  }
  std::ranges::sort(found.checkpoints, {}, &FoundCheckpoint::path);
  return found;
}

}  // namespace anymesh
