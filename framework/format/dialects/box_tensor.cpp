#include "framework/format/dialects/box_tensor.h"

#include <algorithm>

#include "framework/util/errors.h"
#include "framework/util/printable.h"

namespace anymesh {
namespace {

// A box as runs of elements that are consecutive in the tensor: rows of its last dims, of which all
// but the first are as long as the tensor's. Run i is at `first(i)`, and runs ascend.
class Runs {
 public:
  Runs(const TensorBox& box, const Shape& whole) : box_(box), strides_(contiguous_strides(whole)) {
    outer_ = whole.size();
    while (outer_ > 0) {
      run_ *= box.shape[--outer_];
      if (box.shape[outer_] != whole[outer_]) break;
    }
    for (size_t dim = 0; dim < outer_; ++dim) count_ *= box.shape[dim];
  }

  int64_t first(int64_t run) const {  // in the tensor
    int64_t at = 0;
    for (size_t dim = strides_.size(); dim-- > 0;) {
      int64_t index = box_.offsets[dim];
      if (dim < outer_) {
        index += run % box_.shape[dim];
        run /= box_.shape[dim];
      }
      at += index * strides_[dim];
    }
    return at;
  }

  // Calls work(place in the box, place in the tensor, count) for what [begin, end) of the tensor
  // has here.
  template <class Work>
  void each(int64_t begin, int64_t end, const Work& work) const {
    int64_t low = 0, high = count_;  // the first run that ends behind `begin`
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      if (first(middle) + run_ > begin)
        high = middle;
      else
        low = middle + 1;
    }
    for (; low < count_; ++low) {
      const int64_t at = first(low), from = std::max(begin, at), to = std::min(end, at + run_);
      if (at >= end) return;
      if (from < to) work(low * run_ + from - at, from, to - from);
    }
  }

 private:
  const TensorBox& box_;
  Shape strides_;
  size_t outer_;
  int64_t run_ = 1, count_ = 1;
};

class BoxTensor : public ByteSource {
 public:
  BoxTensor(Shape shape, DType dtype, std::vector<TensorBox> boxes)
      : shape_(std::move(shape)), width_(element_size(dtype)), boxes_(std::move(boxes)) {
    for (const TensorBox& box : boxes_) runs_.emplace_back(box, shape_);
  }

  uint64_t size() const override { return static_cast<uint64_t>(numel(shape_)) * width_; }

  void read(uint64_t offset, std::span<std::byte> out) const override {
    check_range(offset, out.size(), "a tensor of boxes");
    each(offset, out.size(), [&](const BytesPtr& bytes, uint64_t in_box, uint64_t at, uint64_t n) {
      bytes->read(in_box, out.subspan(at - offset, n));
    });
  }

  std::vector<FileRange> places(uint64_t offset, uint64_t count) const override {
    std::vector<std::pair<uint64_t, std::vector<FileRange>>> found;
    each(offset, count, [&](const BytesPtr& bytes, uint64_t in_box, uint64_t at, uint64_t n) {
      found.emplace_back(at, bytes->places(in_box, n));
    });
    std::ranges::stable_sort(found, {}, [](const auto& each) { return each.first; });
    std::vector<FileRange> places;
    for (auto& [at, ranges] : found) places.insert(places.end(), ranges.begin(), ranges.end());
    return places;
  }

 private:
  template <class Work>
  void each(uint64_t offset, uint64_t count, const Work& work) const {
    if (offset % width_ != 0 || count % width_ != 0)
      throw DamagedFile("a tensor of boxes can only be read by whole elements");
    const auto begin = static_cast<int64_t>(offset / width_),
               end = begin + static_cast<int64_t>(count / width_);
    for (size_t i = 0; i < boxes_.size(); ++i)
      runs_[i].each(begin, end, [&](int64_t in_box, int64_t at, int64_t n) {
        work(boxes_[i].bytes, static_cast<uint64_t>(in_box) * width_,
             static_cast<uint64_t>(at) * width_, static_cast<uint64_t>(n) * width_);
      });
  }

  Shape shape_;
  uint64_t width_;
  std::vector<TensorBox> boxes_;
  std::vector<Runs> runs_;  // of boxes_, which do not move
};

constexpr int64_t kMostPairs = 100'000'000;

bool overlap(const TensorBox& a, const TensorBox& b) {
  for (size_t dim = 0; dim < a.shape.size(); ++dim)
    if (a.offsets[dim] >= b.offsets[dim] + b.shape[dim] ||
        b.offsets[dim] >= a.offsets[dim] + a.shape[dim])
      return false;
  return true;
}

std::string text_of(const TensorBox& box) {
  return to_string(box.shape) + " at " + to_string(box.offsets);
}

}  // namespace

TensorRecord tensor_of_boxes(const std::string& name, DType dtype, const Shape& shape,
                             std::vector<TensorBox> boxes) {
  const auto fail = [&](const std::string& what) {
    throw DamagedFile(printable(name) + ", a tensor of " + to_string(shape) + ": " + what);
  };
  int64_t covered = 0;
  const int64_t whole = numel(shape);
  for (const TensorBox& box : boxes) {
    if (box.shape.size() != shape.size() || box.offsets.size() != shape.size())
      fail("its part " + text_of(box) + " has other dims");
    for (size_t dim = 0; dim < shape.size(); ++dim)
      if (box.offsets[dim] < 0 || box.shape[dim] < 0 || box.offsets[dim] > shape[dim] ||
          box.shape[dim] > shape[dim] - box.offsets[dim])
        fail("its part " + text_of(box) + " lies outside");
    covered += numel(box.shape);
    if (covered > whole) fail("its parts have more elements");
  }
  std::erase_if(boxes, [](const TensorBox& box) { return numel(box.shape) == 0; });
  if (covered < whole)
    fail("its parts have " + std::to_string(covered) + " elements of " + std::to_string(whole));
  if (!shape.empty()) {  // a box can only overlap those that begin before it ends, in the first dim
    std::ranges::sort(boxes, {}, [](const TensorBox& box) { return box.offsets; });
    int64_t pairs = 0;
    for (size_t i = 0; i < boxes.size(); ++i) {
      const int64_t end = boxes[i].offsets[0] + boxes[i].shape[0];
      for (size_t j = i + 1; j < boxes.size() && boxes[j].offsets[0] < end; ++j) {
        if (overlap(boxes[i], boxes[j]))
          fail("its parts " + text_of(boxes[i]) + " and " + text_of(boxes[j]) + " overlap");
        if (++pairs > kMostPairs)
          throw Unreadable(printable(name) + ": has more parts side by side than can be compared");
      }
    }
  }
  if (boxes.size() == 1) return {dtype, shape, false, boxes[0].bytes};
  if (boxes.empty())
    return {dtype, shape, false, std::make_shared<OwnedBytes>(std::vector<std::byte>())};
  return {dtype, shape, false, std::make_shared<BoxTensor>(shape, dtype, std::move(boxes))};
}

}  // namespace anymesh
