#include <array>
#include <map>
#include <set>

#include "framework/format/layout.h"
#include "framework/format/whole.h"
#include "framework/util/format.h"
#include "tools/ckpt/ckpt.h"
#include "tools/plot/figure.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;

using FileKind = CheckpointFileName::Kind;

constexpr size_t kMostRows = 40;
constexpr double kNames = kLeft + 30;  // left of it: ranks
constexpr double kLine = 24, kFileBar = 14, kFileLetter = 6.4, kBars = 300, kSizes = 70;

enum Content { kWeights, kMasters, kMoments, kRest };
using Contents = std::array<uint64_t, 4>;  // bytes

// One file, or several that differ only in the layer or the parameter.
struct FileRow {
  std::string rank, name;
  int files = 0;
  Contents bytes{};
  uint64_t size() const { return bytes[0] + bytes[1] + bytes[2] + bytes[3]; }
};

// Returns what the tensors below this key are; `above` is the answer for the dict around it.
Content content_of(const std::string& key, Content above) {
  if (key == keys::kModule || key == keys::kFrozenParamFragments) return kWeights;
  if (key == keys::kFp32Groups || key == keys::kFp32FlatGroups || key == keys::kFp32GroupsFlat ||
      key == keys::kFp32GroupsUnfused)
    return kMasters;
  if (key == keys::kState || key == keys::kBaseOptimizerState) return kMoments;
  return above;
}

// Adds the bytes of all tensors in a value, those that share memory once.
void add_tensors(const Value& value, Content content, std::set<const ByteSource*>& seen,
                 Contents& bytes) {
  if (value.is_tensor()) {
    const TensorRecord& tensor = value.as_tensor();
    if (seen.insert(tensor.bytes.get()).second) bytes[content] += tensor.nbytes();
  } else if (value.is_dict()) {
    for (const auto& [key, child] : value.entries())
      add_tensors(child, key.is_string() ? content_of(key.as_string(), content) : content, seen,
                  bytes);
  } else if (value.is_sequence()) {
    for (const Value& child : value.items()) add_tensors(child, content, seen, bytes);
  }
}

// Returns what a file holds. In a universal folder its name says it.
Contents contents_of(const fs::path& file) {
  Contents bytes{};
  const std::string state = file.stem();
  const bool is_state = file.parent_path().parent_path().filename() == kZeroFolder;
  const auto name = parse_checkpoint_file_name(file.filename().string());
  const Content content =
      is_state ? state == kFp32State ? kMasters : kMoments
      : !name || name->kind == FileKind::kLayer || name->kind == FileKind::kExpert ? kWeights
                                                                                   : kRest;
  std::set<const ByteSource*> seen;
  add_tensors(read_weights_file(file), content, seen, bytes);
  const uint64_t tensors = bytes[kWeights] + bytes[kMasters] + bytes[kMoments] + bytes[kRest];
  bytes[kRest] += fs::file_size(file) - std::min<uint64_t>(fs::file_size(file), tensors);
  return bytes;
}

// "tp 0, pp 1, dp 2", as far as the file's name says. `tp_size` tells mp ranks apart.
std::string rank_of(const CheckpointFileName& name, int tp_size) {
  const int tp = name.kind == FileKind::kLayer ? name.tp_rank : name.mp_rank % tp_size;
  std::string text = "tp " + std::to_string(tp);
  if (name.mp_rank >= 0) text += ", pp " + std::to_string(name.mp_rank / tp_size);
  if (name.dp_rank >= 0) text += ", dp " + std::to_string(name.dp_rank);
  return text;
}

// Returns the rows in the order of their names. Layer files of one tp rank share a row, and files
// of a universal folder's parameters that hold the same state.
std::vector<FileRow> rows_of(const Checkpoint& checkpoint) {
  const bool is_ordinary = checkpoint.kind == Checkpoint::Kind::kOrdinary;
  const SavedParameter first = checkpoint.parameter(checkpoint.names().at(0));
  const int tp_size = first.shards->back().tp_rank + 1;
  const fs::path folder = folder_of(checkpoint);
  std::map<std::string, FileRow> rows;
  for (const fs::path& file : files_under(checkpoint.path)) {
    if (!holds_tensors(file)) continue;
    const std::string base = file.filename();
    const auto name = parse_checkpoint_file_name(base);
    const bool is_layer = name && name->kind == FileKind::kLayer,
               is_state = file.parent_path().parent_path().filename() == kZeroFolder;
    const std::string rank = name && is_ordinary ? rank_of(*name, tp_size) : "",
                      shown = is_layer   ? "layer_*-model_*-model_states.pt"
                              : is_state ? "zero/*/" + base
                                         : fs::relative(file, folder).string();
    FileRow& row = rows[is_layer ? shown + rank : shown];
    row.rank = rank;
    row.name = shown;
    ++row.files;
    const Contents bytes = contents_of(file);
    for (size_t i = 0; i < bytes.size(); ++i) row.bytes[i] += bytes[i];
  }
  std::vector<FileRow> list;
  for (auto& [key, row] : rows) list.push_back(row);
  return list;
}

std::string size_text(uint64_t bytes) {
  const double size = static_cast<double>(bytes);
  return size < 1e6   ? string_printf("%.1f kB", size / 1e3)
         : size < 1e9 ? string_printf("%.1f MB", size / 1e6)
                      : string_printf("%.1f GB", size / 1e9);
}

}  // namespace

Figure checkpoint_figure(const std::string& path) {
  const Checkpoint checkpoint = open_checkpoint(path, 4);
  const std::vector<FileRow> rows = rows_of(checkpoint);
  uint64_t largest = 1, total = 0;
  size_t longest = 0;
  int files = 0;
  for (const FileRow& row : rows) {
    largest = std::max(largest, row.size());
    total += row.size();
    files += row.files;
    longest = std::max(longest, row.name.size() + (row.files > 1 ? 6 : 0));
  }
  const double bars = kNames + 20 + kFileLetter * static_cast<double>(longest);
  Figure figure{.title = printable(fs::path(checkpoint.path).filename().string()),
                .seen = checkpoint.description + ": " + std::to_string(files) + " files, " +
                        size_text(total) +
                        ". A row for each file, with the rank that it is of, its name, and a bar "
                        "of the bytes of weights, fp32 masters and moments in it.",
                .legend = {"weights", "fp32 masters", "moments", "the rest"},
                .width = bars - kLeft + kBars + kSizes};
  figure.body = text_at(
      kLeft, kTop - 10, "tick",
      checkpoint.description + "; " + std::to_string(files) + " files, " + size_text(total));
  double y = kTop + 8;
  for (size_t i = 0; i < std::min(rows.size(), kMostRows); ++i, y += kLine) {
    const FileRow& row = rows[i];
    const std::string count = row.files > 1 ? std::to_string(row.files) + " x " : "";
    figure.body += text_at(kNames - 12, y + 11, "tick end", row.rank) +
                   text_at(kNames, y + 11, "tick", count + printable(row.name));
    double x = bars;
    for (size_t part = 0; part < row.bytes.size(); ++part) {
      const double width =
          kBars * static_cast<double>(row.bytes[part]) / static_cast<double>(largest);
      if (width > 0) figure.body += rectangle(x, y, width, kFileBar, series(part));
      x += width;
    }
    figure.body += text_at(x + 6, y + 11, "tick", size_text(row.size()));
  }
  if (rows.size() > kMostRows) {
    figure.body += text_at(kNames, y + 11, "tick",
                           "... and " + std::to_string(rows.size() - kMostRows) + " more rows");
    y += kLine;
  }
  figure.bottom = y;
  return figure;
}

}  // namespace anymesh
