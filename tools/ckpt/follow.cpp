// Follows one parameter from the bytes in the files to the whole tensor.

#include <algorithm>

#include "framework/format/whole.h"
#include "framework/util/errors.h"
#include "framework/util/nearest_name.h"
#include "tools/ckpt/ckpt.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostPlaces = 64, kMostNear = 3, kLongestName = 200;

// "W[:, 128:256]" for columns 128 to 255 of a matrix, as Python writes it.
std::string python_slice(size_t dims, size_t dim, int64_t begin, int64_t end) {
  std::string text = "W[";
  for (size_t d = 0; d < dims; ++d) {
    if (d > 0) text += ", ";
    if (d == dim) text += std::to_string(begin);
    text += ':';
    if (d == dim) text += std::to_string(end);
  }
  return text + "]";
}

std::string elements_text(const std::string& slice, int64_t begin, int64_t end) {
  return slice + ".flat[" + std::to_string(begin) + ":" + std::to_string(end) + "]";
}

// The command that prints the elements of a range.
std::string dd_command(const FileRange& range, DType dtype) {
  const bool is_real = dtype == DType::kFloat32 || dtype == DType::kFloat64;
  const std::string size = range.dtype.empty() ? std::to_string(element_size(dtype)) : "2";
  return "dd if='" + printable(range.file.string(), 1000) +
         "' iflag=skip_bytes,count_bytes skip=" + std::to_string(range.offset) +
         " count=" + std::to_string(range.size) + " status=none | od -A d -t " +
         (is_real && range.dtype.empty() ? "f" : "x") + size;
}

class Follower {
 public:
  Follower(const Checkpoint& checkpoint, const std::string& name, const CkptOptions& options,
           std::ostream& out)
      : checkpoint_(checkpoint),
        parameter_(parameter_named(checkpoint, name)),
        options_(options),
        out_(out),
        is_ordinary_(checkpoint.kind == Checkpoint::Kind::kOrdinary),
        is_cut_(
            !parameter_.cut.pieces.empty() ||
            (!parameter_.cut.replicated && parameter_.shards->front().shape != parameter_.shape)),
        tp_size_(parameter_.shards->back().tp_rank + 1) {}

  void print(const std::string& name) {
    print_head(name);
    print_state(std::string(kFp32State));
    for (const auto& [state, tensor] : parameter_.states)
      if (state != kFp32State) print_state(state);
    print_recipe();
  }

 private:
  void print_head(const std::string& name) {
    out_ << checkpoint_.description << "\n\nW = " << printable(name) << ": "
         << Value(parameter_.weight()).found() << ", " << numel(parameter_.shape) << " elements";
    if (const std::string& first = checkpoint_.first_name(name); first != name)
      out_ << ", the same parameter as " << printable(first);
    out_ << '\n';
    if (!is_ordinary_) {
      out_ << (checkpoint_.kind == Checkpoint::Kind::kDcp
                   ? "  boxes of it are in the files of ranks\n"
                   : "  whole: one file for each state\n");
      return;
    }
    for (int tp = 0; tp < tp_size_ && is_cut_; ++tp)
      out_ << "  tp " << tp << " has S" << tp << " = " << slice_text(parameter_, tp) << '\n';
    if (tp_size_ > 1 && parameter_.averaged()) {
      out_ << "  each tp rank has a copy; W is their mean\n";
    } else if (tp_size_ > 1 && !is_cut_) {
      out_ << "  each tp rank has all of W\n";
    }
    if (parameter_.pp_ranks.size() > 1)
      out_ << "  " << parameter_.pp_ranks.size()
           << " pipeline stages have a copy; W is the first one's\n";
  }

  // Prints where each fragment of a state lies.
  void print_state(const std::string& state) {
    std::vector<std::vector<std::string>> rows = {
        {"rank", "elements", "file", "record", "offset", "bytes"}};
    std::string stored;
    size_t count = 0;
    for (const ParameterShard& shard : *parameter_.shards) {
      const auto found = shard.states.find(state);
      if (found == shard.states.end()) continue;
      for (const ShardFragment& fragment : found->second.fragments)
        count += add_rows(shard, fragment, found->second, state, stored, rows);
    }
    out_ << '\n'
         << printable(state) << ": " << dtype_name(parameter_.state(state).dtype)
         << (stored.empty() ? "" : ", in the file " + stored) << '\n';
    if (!is_ordinary_)
      for (auto& row : rows) row.erase(row.begin());
    print_table(std::move(rows), out_);
    print_rest(out_, "  ", count - std::min(count, most_places()));
  }

  // Adds a row for each place with elements of a fragment. Returns how many there are.
  size_t add_rows(const ParameterShard& shard, const ShardFragment& fragment,
                  const ShardState& held, const std::string& state, std::string& stored,
                  std::vector<std::vector<std::string>>& rows) {
    const DType dtype = held.dtype;
    const std::vector<FragmentPlace> places = places_of(fragment, dtype);
    const std::string slice = held.factored ? printable(state)
                              : is_cut_     ? "S" + std::to_string(shard.tp_rank)
                                            : "W";
    for (const auto& [place, begin, numel] : places) {
      stored = place.dtype;
      if (example_.empty()) example_ = dd_command(place, dtype);
      if (rows.size() <= most_places())
        rows.push_back({rank_text(parameter_, shard, fragment, place.file),
                        elements_text(slice, begin, begin + numel),
                        printable(fs::relative(place.file, folder_of(checkpoint_)).string(), 1000),
                        place.record.empty() ? "-" : printable(record_of(place)),
                        std::to_string(place.offset), std::to_string(place.size)});
    }
    return places.size();
  }

  void print_recipe() {
    if (is_ordinary_)
      out_ << "\nTo make W, join the fragments of "
           << (is_cut_ ? "each slice end to end, reshape it, and put it in its place"
                       : "one rank's copy end to end, and reshape it")
           << ".\n";
    if (!example_.empty()) out_ << "\nThis prints the first: " << example_ << '\n';
  }

  // The record's name in its archive, without the archive's own: "data/3".
  static std::string record_of(const FileRange& place) {
    return place.record.substr(place.record.find('/') + 1);
  }

  size_t most_places() const { return options_.all ? SIZE_MAX : kMostPlaces; }

  const Checkpoint& checkpoint_;
  SavedParameter parameter_;
  const CkptOptions& options_;
  std::ostream& out_;
  const bool is_ordinary_, is_cut_;
  const int tp_size_;
  std::string example_;  // prints the first fragment
};

}  // namespace

std::vector<FragmentPlace> places_of(const ShardFragment& fragment, DType dtype) {
  const std::vector<FileRange> ranges = fragment.bytes->places(
      fragment.offset, static_cast<uint64_t>(fragment.numel) * element_size(dtype));
  uint64_t total = 0;
  for (const FileRange& range : ranges) total += range.size;
  std::vector<FragmentPlace> places;
  int64_t begin = fragment.begin;
  for (const FileRange& range : ranges) {
    const auto numel = total == 0 ? 0
                                  : static_cast<int64_t>(range.size) * fragment.numel /
                                        static_cast<int64_t>(total);
    places.push_back({range, begin, numel});
    begin += numel;
  }
  return places;
}

std::string rank_text(const SavedParameter& parameter, const ParameterShard& shard,
                      const ShardFragment& fragment, const fs::path& file) {
  const auto name = parse_checkpoint_file_name(file.filename().string());
  std::string text;
  if (!parameter.pp_ranks.empty()) text = "pp " + std::to_string(shard.pp_rank) + ", ";
  text += "tp " + std::to_string(shard.tp_rank) + ", dp ";
  return text + (name && name->dp_rank >= 0 ? std::to_string(fragment.dp_rank) : "all");
}

std::string slice_text(const SavedParameter& parameter, int tp_rank) {
  const ShardLayout slice = parameter.slice(tp_rank);
  const Shape& shape = slice.shard_shape();
  if (shape == parameter.shape && parameter.cut.pieces.empty()) return "W";
  const auto dim = static_cast<size_t>(parameter.cut.dim);
  std::string text;
  int64_t width = 0;
  for (const CutPiece& piece : slice.pieces()) {
    text += (text.empty() ? "" : " and ") +
            python_slice(shape.size(), dim, piece.full_begin, piece.full_begin + piece.width);
    if (piece.scale != 1) text += " * " + std::to_string(piece.scale);
    width += piece.width;
  }
  text += (text.empty() ? "" : ", ") + std::string("of shape ") + to_string(shape);
  if (width < shape[dim]) text += ", " + std::to_string(shape[dim] - width) + " of padding";
  return text;
}

SavedParameter parameter_named(const Checkpoint& checkpoint, const std::string& name) {
  if (checkpoint.contains(name)) return checkpoint.parameter(name);
  std::vector<std::pair<size_t, std::string>> near;
  for (const std::string& known : checkpoint.names()) {
    if (name.size() > kLongestName || known.size() > kLongestName) continue;
    const size_t distance = known.find(name) != std::string::npos ? 1 : edit_distance(name, known);
    if (distance <= std::max<size_t>(2, known.size() / 4)) near.emplace_back(distance, known);
  }
  std::ranges::sort(near);
  std::string names;
  for (size_t i = 0; i < std::min(near.size(), kMostNear); ++i)
    names += (i == 0 ? "; it has " : ", ") + near[i].second;
  throw_error(checkpoint.path.string(), ": no parameter '", name, "' among its ",
              checkpoint.names().size(), names);
}

int follow_parameter(const fs::path& path, const std::string& name, const CkptOptions& options,
                     std::ostream& out) {
  const Checkpoint checkpoint = open_checkpoint(path, options.workers);
  Follower(checkpoint, name, options, out).print(name);
  return kExitAllWell;
}

}  // namespace anymesh
