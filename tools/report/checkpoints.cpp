#include "framework/format/layout.h"
#include "framework/format/whole.h"
#include "framework/util/errors.h"
#include "framework/util/format.h"
#include "framework/util/plain_words.h"
#include "tools/ckpt/ckpt.h"
#include "tools/report/sections.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostFiles = 60;
constexpr int kThreads = 4;

std::string text_of(const Value& value) { return value ? escaped(value.found()) : ""; }

// Returns whether `latest` or `latest_universal` beside the checkpoint names it.
bool is_latest(const fs::path& path) {
  for (const std::string_view pointer : {kLatestFile, kLatestUniversalFile}) {
    const fs::path file = path.parent_path() / pointer;
    try {
      if (fs::exists(file) && read_tag(file) == path.filename()) return true;
    } catch (const std::exception&) {
      // A pointer that cannot be read names nothing.
    }
  }
  return false;
}

std::string file_list(const fs::path& path, const std::vector<fs::path>& files) {
  std::string lines;
  for (size_t i = 0; i < std::min(files.size(), kMostFiles); ++i)
    lines += escaped(fs::relative(files[i], path).string()) + "  " +
             std::to_string(fs::file_size(files[i])) + "\n";
  if (files.size() > kMostFiles)
    lines += "... and " + std::to_string(files.size() - kMostFiles) + " more\n";
  return element("pre", lines);
}

}  // namespace

ReportSection checkpoints_section(const RunFolder& folder) {
  if (folder.checkpoints.empty())
    return absent_section("Checkpoints", "None: train with <code>--save FOLDER</code>.");
  HtmlTable table({"checkpoint", "layout", "step", "samples", "files", "size"});
  std::string lists;
  for (const auto& [name, path] : folder.checkpoints) {
    const std::string label = escaped(name) + (is_latest(path) ? "<small>latest</small>" : "");
    try {
      const std::vector<fs::path> files = files_under(path);
      const Checkpoint whole = open_checkpoint(path, kThreads);
      const Value& metadata = whole.metadata;
      const std::string tensors = std::to_string(whole.names().size()) + " tensors";
      table.add({label, escaped(whole.description) + element("small", tensors),
                 metadata ? text_of(step_of(metadata)) : "",
                 metadata ? text_of(samples_of(metadata)) : "", std::to_string(files.size()),
                 size_text(static_cast<double>(bytes_of(files)))});
      lists += fold("Files of " + escaped(name), file_list(path, files));
    } catch (const std::exception& error) {
      const std::string message = "<span class=\"warn\">cannot be read</span>" +
                                  element("small", escaped(printable_message(error)));
      table.add({label, message, "", "", "", ""});
    }
  }
  return {"Checkpoints",
          "An ordinary checkpoint has a file for each rank. A universal one has files for each "
          "parameter, and resumes on any mesh.",
          table.html() + lists};
}

}  // namespace anymesh
