#include <algorithm>
#include <atomic>
#include <numeric>
#include <set>

#include "framework/format/sharded.h"
#include "framework/format/whole.h"
#include "framework/util/errors.h"
#include "framework/util/parallel_for.h"
#include "tools/ckpt/ckpt.h"

namespace anymesh {
namespace {

constexpr uint64_t kChunk = 4 << 20;
constexpr size_t kMostDifferences = 40, kMostOfLine = 2000;

// The differences in one parameter, a line each. notes: differences that do not count.
struct Findings {
  std::vector<std::string> differences, notes, unknown;  // unknown: cannot be compared
  int64_t by_value = 0;                                  // tensors with different dtypes
};

// Returns a note if the tensors are equal except for more rows in one of them, all zero; ""
// otherwise. DeepSpeed's exports have such rows, which pad the vocabulary.
std::string more_rows(const TensorRecord& a, const TensorRecord& b) {
  const bool comparable = is_comparable(a.dtype, b.dtype) && !a.shape.empty() &&
                          a.shape.size() == b.shape.size() &&
                          std::equal(a.shape.begin() + 1, a.shape.end(), b.shape.begin() + 1);
  if (!comparable) return "";
  const bool a_is_longer = a.shape[0] > b.shape[0];
  const TensorRecord &longer = a_is_longer ? a : b, &shorter = a_is_longer ? b : a;
  Shape rest = longer.shape;
  rest[0] -= shorter.shape[0];
  const TensorRecord head = longer.slice(0, shorter.shape),
                     tail = longer.slice(shorter.numel(), rest);
  if (compare_tensors(shorter, head).count > 0 || !is_zero(tail)) return "";
  return ": equal but for " + std::to_string(tail.shape[0]) + " more rows of zeros in " +
         (a_is_longer ? "A" : "B");
}

bool is_vocabulary(const SavedParameter& parameter) {
  return parameter.keys && parameter.keys.contains(keys::kVocabTensor);
}

bool has_weights_alone(const Checkpoint& checkpoint) {
  return checkpoint.kind == Checkpoint::Kind::kWeights || !checkpoint.states_refused.empty();
}

// Returns how many bytes of a parameter of A are compared; 0 if it cannot be read.
uint64_t compared_bytes(const Checkpoint& a, const std::string& name) try {
  uint64_t bytes = 0;
  if (a.contains(name))
    for (const auto& [state, tensor] : a.parameter(name).states) bytes += tensor.nbytes();
  return bytes;
} catch (const std::exception&) {
  return 0;
}

Findings diff_parameter(const Checkpoint& a, const Checkpoint& b, const std::string& name,
                        std::atomic<int64_t>& tensors) {
  if (!a.contains(name) || !b.contains(name))
    return {{printable(name) + ": only in " + (a.contains(name) ? "A" : "B")}, {}};
  Findings found;
  const SavedParameter one = a.parameter(name), other = b.parameter(name);
  const bool weights_only = has_weights_alone(a) || has_weights_alone(b);
  std::set<std::string> states = {std::string(kFp32State)};
  for (const SavedParameter* parameter : {&one, &other})
    for (const auto& [state, tensor] : parameter->states)
      if (!weights_only) states.insert(state);
  for (const std::string& state : states) {
    const TensorRecord x = one.state(state), y = other.state(state);
    const std::string where = printable(name) + " " + printable(state) + ": ";
    if (!x.bytes && !y.bytes) continue;
    ++tensors;
    if (!x.bytes || !y.bytes) {
      found.differences.push_back(where + "only in " + (x.bytes ? "A" : "B"));
    } else if (x.shape != y.shape || !is_comparable(x.dtype, y.dtype)) {
      const std::string rows = more_rows(x, y);
      const std::string line =
          where + Value(x).found() + " in A, " + Value(y).found() + " in B" + rows;
      if (!rows.empty() && (is_vocabulary(one) || is_vocabulary(other)))
        found.notes.push_back("note: " + line + ", which pad the vocabulary");
      else
        found.differences.push_back(line);
    } else {
      found.by_value += x.dtype != y.dtype;
      if (const TensorDifference difference = compare_tensors(x, y); difference.count > 0)
        found.differences.push_back(where + difference.text());
    }
  }
  if (weights_only || (!one.step && !other.step)) return found;
  ++tensors;
  if (!one.step || !other.step || one.step.as_double() != other.step.as_double()) {
    const auto text = [](const Value& step) {
      return step ? std::to_string(step.as_int()) : std::string("none");
    };
    found.differences.push_back(printable(name) + " step: " + text(one.step) + " in A, " +
                                text(other.step) + " in B");
  }
  return found;
}

}  // namespace

bool is_zero(const TensorRecord& tensor) {
  std::vector<std::byte> buffer(std::min(kChunk, tensor.nbytes()));
  for (uint64_t offset = 0; offset < tensor.nbytes(); offset += kChunk) {
    const auto chunk = std::span(buffer).first(std::min(kChunk, tensor.nbytes() - offset));
    tensor.bytes->read(offset, chunk);
    if (std::ranges::count(chunk, std::byte{0}) != std::ssize(chunk)) return false;
  }
  return true;
}

std::vector<std::filesystem::path> files_under(const std::filesystem::path& path) {
  if (std::filesystem::is_regular_file(path)) return {path};
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(path))
    if (entry.is_regular_file()) files.push_back(entry.path());
  std::ranges::sort(files);
  return files;
}

bool is_torch_file(const std::filesystem::path& file) {
  return file.extension() == ".pt" || file.extension() == ".bin";
}

bool holds_tensors(const std::filesystem::path& file) {
  return is_torch_file(file) || file.extension() == ".safetensors";
}

uint64_t bytes_of(const std::vector<std::filesystem::path>& files) {
  uint64_t total = 0;
  for (const std::filesystem::path& file : files) total += std::filesystem::file_size(file);
  return total;
}

void print_lines(std::ostream& out, const std::vector<std::string>& lines, size_t limit,
                 const CkptOptions& options) {
  const size_t count = options.all ? lines.size() : std::min(limit, lines.size());
  for (size_t i = 0; i < count; ++i) out << printable(lines[i], kMostOfLine, true) << '\n';
  if (count < lines.size())
    print_rest(out, lines[count].substr(0, lines[count].find_first_not_of(' ')),
               lines.size() - count);
}

void print_table(std::vector<std::vector<std::string>> rows, std::ostream& out) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (auto& row : rows) {
    out << ' ';
    for (size_t i = 0; i + 1 < row.size(); ++i) row[i].resize(widths[i], ' ');
    for (const std::string& cell : row)
      out << ' ' << (&cell == &row[0] ? "" : " ") << printable(cell, kMostOfLine, true);
    out << '\n';
  }
}

void print_rest(std::ostream& out, const std::string& indent, size_t count) {
  if (count > 0) out << indent << "... and " << count << " more (--all)\n";
}

int diff_checkpoints(const std::filesystem::path& a, const std::filesystem::path& b,
                     const CkptOptions& options, std::ostream& out) {
  const Checkpoint one = open_checkpoint(a, options.workers),
                   other = open_checkpoint(b, options.workers);
  out << "A: " << printable(one.path.string(), kMostOfLine) << ": " << one.description << '\n';
  out << "B: " << printable(other.path.string(), kMostOfLine) << ": " << other.description << '\n';
  for (const Checkpoint* checkpoint : {&one, &other})
    if (!checkpoint->states_refused.empty())
      out << "note: weights alone are compared, not the optimizers' states: "
          << printable(checkpoint->states_refused, kMostOfLine) << '\n';
  std::vector<std::string> names;
  std::set_union(one.names().begin(), one.names().end(), other.names().begin(), other.names().end(),
                 std::back_inserter(names));
  std::vector<Findings> found(names.size());
  std::vector<uint64_t> bytes(names.size());
  for (size_t i = 0; options.progress && i < names.size(); ++i)
    bytes[i] = compared_bytes(one, names[i]);
  ProgressCounter compared(std::accumulate(bytes.begin(), bytes.end(), uint64_t{0}),
                           options.progress);
  std::atomic<int64_t> tensors{0};
  parallel_for(names.size(), options.workers, [&](size_t i) {
    try {
      found[i] = diff_parameter(one, other, names[i], tensors);
      compared.add(bytes[i]);
    } catch (const Unreadable& error) {
      found[i].unknown = {printable(names[i]) + ": cannot be compared: " + error.what()};
    } catch (const std::exception& error) {
      found[i] = {{printable(names[i]) + ": cannot be read: " + error.what()}, {}};
    }
  });
  int64_t by_value = 0;
  for (const Findings& each : found) by_value += each.by_value;
  const auto all = [&](std::vector<std::string> Findings::*kind) {
    std::vector<std::string> all;
    for (const Findings& each : found)
      all.insert(all.end(), (each.*kind).begin(), (each.*kind).end());
    return all;
  };
  const auto lines = all(&Findings::differences), unknown = all(&Findings::unknown);
  if (by_value > 0)
    out << "note: " << by_value << " tensors are of another dtype in A than in B; their values are "
        << "compared\n";
  print_lines(out, all(&Findings::notes), kMostDifferences, options);
  print_lines(out, unknown, kMostDifferences, options);
  print_lines(out, lines, kMostDifferences, options);
  out << names.size() << " parameters, " << tensors << " tensors compared, " << lines.size()
      << " differences";
  if (!unknown.empty()) out << ", " << unknown.size() << " parameters not compared";
  out << '\n';
  return !lines.empty() ? kExitDiffers : !unknown.empty() ? kExitNotUnderstood : kExitAllWell;
}

}  // namespace anymesh
