#include "tools/hf/tensors.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "framework/format/sharded.h"
#include "framework/util/errors.h"
#include "framework/util/format.h"

namespace anymesh {
namespace {

// Joins fp32 sources end to end.
BytesPtr stacked(std::vector<BytesPtr> parts) {
  if (parts.size() == 1) return parts[0];
  std::vector<ShardFragment> fragments;
  int64_t begin = 0;
  for (BytesPtr& part : parts) {
    const auto count = static_cast<int64_t>(part->size() / sizeof(float));
    fragments.push_back({.begin = begin, .numel = count, .bytes = std::move(part)});
    begin += count;
  }
  return joined({begin}, std::move(fragments), DType::kFloat32);
}

// Returns the transpose of an fp32 matrix. Reading a range of it reads a piece of every row.
BytesPtr transposed(const BytesPtr& matrix, int64_t matrix_rows, int64_t matrix_columns) {
  const auto rows = static_cast<uint64_t>(matrix_rows),
             columns = static_cast<uint64_t>(matrix_columns);
  const auto read = [=](uint64_t offset, std::span<std::byte> out) {
    constexpr uint64_t kElement = sizeof(float);
    if (out.empty()) return;
    const uint64_t begin = offset / kElement, end = begin + out.size() / kElement;
    const uint64_t first = begin / rows, last = (end - 1) / rows;  // columns
    std::vector<std::byte> piece((last - first + 1) * kElement);
    for (uint64_t row = 0; row < rows; ++row) {
      matrix->read((row * columns + first) * kElement, piece);
      for (uint64_t column = first; column <= last; ++column) {
        const uint64_t at = column * rows + row;
        if (at >= begin && at < end)
          std::memcpy(out.data() + (at - begin) * kElement,
                      piece.data() + (column - first) * kElement, kElement);
      }
    }
  };
  return std::make_shared<ComputedBytes>(matrix->size(), "a transposed tensor", read);
}

// Moves the rows from the order of `to_ours ? theirs : ours` to the other one.
BytesPtr reordered(const BytesPtr& bytes, const HfParameter& parameter, bool to_ours) {
  const uint64_t row = bytes->size() / static_cast<uint64_t>(parameter.shape[0]);
  std::map<int64_t, BytesPtr> parts;  // by the row they go to
  int64_t theirs = 0;
  for (const auto& [ours, count] : parameter.order) {
    parts[to_ours ? ours : theirs] =
        std::make_shared<SubRange>(bytes, static_cast<uint64_t>(to_ours ? theirs : ours) * row,
                                   static_cast<uint64_t>(count) * row);
    theirs += count;
  }
  std::vector<BytesPtr> sorted;
  for (auto& [to, part] : parts) sorted.push_back(std::move(part));
  return stacked(std::move(sorted));
}

BytesPtr changed(const BytesPtr& bytes, const HfParameter::Change& change) {
  const auto read = [=](uint64_t offset, std::span<std::byte> out) {
    std::vector<float> elements(out.size() / sizeof(float));
    bytes->read(offset, std::as_writable_bytes(std::span(elements)));
    change(static_cast<int64_t>(offset / sizeof(float)), elements);
    std::memcpy(out.data(), elements.data(), out.size());
  };
  return std::make_shared<ComputedBytes>(bytes->size(), "a changed tensor", read);
}

// Returns whether the ranges cover all rows, each once.
bool covers(std::vector<HfParameter::Rows> ranges, int64_t rows) {
  std::sort(ranges.begin(), ranges.end(),
            [](const auto& a, const auto& b) { return a.begin < b.begin; });
  int64_t end = 0;
  for (const auto& [begin, count] : ranges) {
    if (begin != end || count < 1) return false;
    end += count;
  }
  return end == rows;
}

}  // namespace

void validate(const HfParameter& parameter) {
  const auto& [name, other_name, shape, theirs, transposed, order, change] = parameter;
  bool fits = true;
  int64_t elements = 0;
  std::vector<std::string> tensors;
  for (const HfTensor& tensor : theirs) {
    elements += numel(tensor.shape);
    tensors.push_back(tensor.name + " " + to_string(tensor.shape));
    if (transposed)
      fits &= shape.size() == 2 && tensor.shape.size() == 2 && tensor.shape[0] == shape[1];
  }
  if (theirs.empty()) return;
  if (!fits || elements != numel(shape))
    throw UserError("the description of " + name + " " + to_string(shape) +
                    ": its elements do not fill " + joined(tensors));
  if (!order.empty() && (shape.empty() || !covers(order, shape[0])))
    throw UserError("the description of " + name + " " + to_string(shape) +
                    ": its order does not have each row once");
}

BytesPtr ours_of(const HfParameter& parameter, std::vector<BytesPtr> theirs) {
  for (size_t i = 0; parameter.transposed && i < theirs.size(); ++i) {
    const Shape& shape = parameter.theirs[i].shape;
    theirs[i] = transposed(theirs[i], shape[0], shape[1]);
  }
  const BytesPtr all = stacked(std::move(theirs));
  return parameter.order.empty() ? all : reordered(all, parameter, /*to_ours=*/true);
}

std::vector<BytesPtr> theirs_of(const HfParameter& parameter, BytesPtr ours) {
  if (parameter.change) ours = changed(ours, parameter.change);
  if (!parameter.order.empty()) ours = reordered(ours, parameter, /*to_ours=*/false);
  std::vector<BytesPtr> theirs;
  uint64_t at = 0;
  for (const auto& [name, shape] : parameter.theirs) {
    const uint64_t size = static_cast<uint64_t>(numel(shape)) * sizeof(float);
    BytesPtr bytes = std::make_shared<SubRange>(ours, at, size);
    if (parameter.transposed) bytes = transposed(bytes, shape[1], shape[0]);
    theirs.push_back(std::move(bytes));
    at += size;
  }
  return theirs;
}

BytesPtr take(const Checkpoint& checkpoint, const std::string& name, const std::string& other_name,
              const Shape& shape, std::set<std::string>& left, const std::string& by) {
  const bool other = !checkpoint.contains(name) && checkpoint.contains(other_name);
  const std::string& stored = other ? other_name : name;
  const SavedParameter found = checkpoint.parameter(stored);
  if (found.shape != shape)
    throw DamagedFile(checkpoint.path.string() + ": " + stored + " is " + to_string(found.shape) +
                      ", expected " + to_string(shape) + by);
  left.erase(stored);
  return as_float32(found.weight()).bytes;
}

}  // namespace anymesh
