#include "framework/format/sharded/tensor_views.h"

#include <bit>
#include <cinttypes>
#include <cmath>
#include <cstring>

#include "framework/format/layout/affine_map.h"
#include "framework/format/torch_file/elements.h"
#include "framework/util/errors.h"
#include "framework/util/format.h"

namespace anymesh {
namespace {

struct ShardRun {
  int64_t full, shard, count;
};

// The dtype of a complex number's two parts.
DType part_of(DType dtype) {
  return dtype == DType::kComplex128  ? DType::kFloat64
         : dtype == DType::kComplex64 ? DType::kFloat32
         : dtype == DType::kComplex32 ? DType::kFloat16
                                      : dtype;
}

// NaNs are equal, but zeros of different sign are not.
bool same_number(double a, double b) {
  return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b) ||
         (std::isnan(a) && std::isnan(b));
}

// Records the differing elements of a chunk that starts at element `first`. Compares bits if the
// dtypes are equal, else values.
void compare_chunk(DType dtype_a, std::span<const std::byte> a, DType dtype_b,
                   std::span<const std::byte> b, int64_t first, TensorDifference& result) {
  const uint64_t size = element_size(dtype_a), count = a.size() / size,
                 parts = is_complex(dtype_a) ? 2 : 1;
  std::vector<double> values_a(count * parts), values_b(values_a.size());
  to_doubles(part_of(dtype_a), a, values_a);
  to_doubles(part_of(dtype_b), b, values_b);
  for (size_t i = 0; i < count; ++i) {
    const bool same = dtype_a == dtype_b ? std::memcmp(&a[i * size], &b[i * size], size) == 0
                                         : same_number(values_a[i], values_b[i]);
    if (same) continue;
    double difference = 0;
    for (size_t part = i * parts; part < (i + 1) * parts; ++part)
      difference = std::hypot(difference, values_a[part] - values_b[part]);
    const bool most = result.count++ == 0 || !(difference <= result.largest);
    if (!most || std::isnan(result.largest)) continue;
    result.largest = difference;
    result.where = first + static_cast<int64_t>(i);
  }
}

// The elements of a tensor, rounded to float32, float16 or bfloat16.
class Converted : public ByteSource {
 public:
  Converted(const TensorRecord& tensor, DType to)
      : from_(tensor), to_(to), from_size_(element_size(tensor.dtype)), size_(element_size(to)) {}

  const TensorRecord& from() const { return from_; }
  uint64_t size() const override { return static_cast<uint64_t>(from_.numel()) * size_; }

  void read(uint64_t offset, std::span<std::byte> out) const override {
    check_range(offset, out.size(), "a converted tensor");
    std::vector<std::byte> from(in_source(out.size()));
    from_.bytes->read(in_source(offset), from);
    std::vector<float> values(out.size() / size_);
    to_floats(from_.dtype, from, values);
    from_floats(to_, values, out);
  }

  std::vector<FileRange> places(uint64_t offset, uint64_t count) const override {
    std::vector<FileRange> places = from_.bytes->places(in_source(offset), in_source(count));
    for (FileRange& place : places) place.dtype = dtype_name(from_.dtype);
    return places;
  }

 private:
  uint64_t in_source(uint64_t bytes) const { return bytes / size_ * from_size_; }

  TensorRecord from_;
  DType to_;
  uint64_t from_size_, size_;
};

// float32 numbers, each divided by a factor.
BytesPtr divided(const BytesPtr& bytes, double exact_factor) {
  const auto factor = static_cast<float>(exact_factor);  // as torch divides
  const auto read = [=](uint64_t offset, std::span<std::byte> out) {
    std::vector<float> values(out.size() / sizeof(float));
    bytes->read(offset, std::as_writable_bytes(std::span(values)));
    for (float& value : values) value /= factor;
    std::memcpy(out.data(), values.data(), out.size());
  };
  return std::make_shared<ComputedBytes>(bytes->size(), "a scaled tensor", read);
}

}  // namespace

TensorRecord as_dtype(const TensorRecord& tensor, DType dtype) {
  if (tensor.dtype == dtype) return {dtype, tensor.shape, false, tensor.bytes};
  if (is_complex(tensor.dtype))
    throw Unreadable("expected a tensor of real numbers, found a " + Value(tensor).found());
  return {dtype, tensor.shape, false, std::make_shared<Converted>(tensor, dtype)};
}

TensorRecord as_float32(const TensorRecord& tensor) { return as_dtype(tensor, DType::kFloat32); }

TensorRecord widened(const TensorRecord& tensor) {
  if (tensor.dtype == DType::kFloat16 || tensor.dtype == DType::kBFloat16)
    return as_float32(tensor);
  return {tensor.dtype, tensor.shape, false, tensor.bytes};
}

TensorRecord as_stored(const TensorRecord& tensor) {
  const auto* converted = dynamic_cast<const Converted*>(tensor.bytes.get());
  return converted ? converted->from() : tensor;
}

TensorRecord rounded(const TensorRecord& tensor, DType dtype) {
  if (dtype == tensor.dtype) return tensor;
  const TensorRecord floats = as_float32(tensor);
  if (dtype == DType::kFloat32) return floats;
  const uint64_t size = element_size(dtype);
  const auto read = [floats, dtype, size](uint64_t offset, std::span<std::byte> out) {
    constexpr uint64_t kValues = 1 << 16;
    std::vector<float> values(std::min(kValues, out.size() / size));
    for (uint64_t place = offset / size; !out.empty(); place += values.size()) {
      values.resize(std::min<uint64_t>(values.size(), out.size() / size));
      floats.bytes->read(place * sizeof(float), std::as_writable_bytes(std::span(values)));
      from_floats(dtype, values, out.first(values.size() * size));
      out = out.subspan(values.size() * size);
    }
  };
  const auto count = static_cast<uint64_t>(tensor.numel());
  return {dtype, tensor.shape, false,
          std::make_shared<ComputedBytes>(count * size, "a rounded tensor", read)};
}

std::string TensorDifference::text() const {
  return string_printf("differs in %" PRId64 " of %" PRId64
                       " elements, at most by %.3e at element %" PRId64,
                       count, numel, largest, where);
}

bool is_comparable(DType a, DType b) { return a == b || (fits_double(a) && fits_double(b)); }

TensorDifference compare_tensors(const TensorRecord& a, const TensorRecord& b) {
  constexpr int64_t kElements = 1 << 20;
  TensorDifference result{.numel = a.numel()};
  std::vector<std::byte> bytes_a, bytes_b;
  const auto read = [](const TensorRecord& tensor, int64_t first, int64_t count,
                       std::vector<std::byte>& bytes) {
    const uint64_t size = element_size(tensor.dtype);
    bytes.resize(static_cast<uint64_t>(count) * size);
    tensor.bytes->read(static_cast<uint64_t>(first) * size, bytes);
  };
  for (int64_t first = 0; first < result.numel; first += kElements) {
    const int64_t count = std::min(kElements, result.numel - first);
    read(a, first, count, bytes_a);
    read(b, first, count, bytes_b);
    if (a.dtype == b.dtype && bytes_a == bytes_b) continue;
    compare_chunk(a.dtype, bytes_a, b.dtype, bytes_b, first, result);
  }
  return result;
}

MergedTensor::MergedTensor(std::vector<Part> parts, DType dtype, std::string what)
    : parts_(std::move(parts)),
      element_size_(element_size(dtype)),
      size_(static_cast<uint64_t>(parts_[0].layout.full_numel()) * element_size_),
      what_(std::move(what)) {}

BytesPtr joined(const Shape& shape, std::vector<ShardFragment> fragments, DType dtype) {
  const ShardLayout whole = ShardLayout::make(shape, {.replicated = true}, 1, 0);
  auto all = std::make_shared<const std::vector<ShardFragment>>(std::move(fragments));
  return std::make_shared<MergedTensor>(std::vector<MergedTensor::Part>{{whole, std::move(all)}},
                                        dtype);
}

TensorRecord tensor_of(const ShardFragment& fragment, DType dtype) {
  const auto size = static_cast<uint64_t>(fragment.numel) * element_size(dtype);
  return {dtype,
          {fragment.numel},
          false,
          std::make_shared<SubRange>(fragment.bytes, fragment.offset, size)};
}

BytesPtr zeros(uint64_t size) {
  return std::make_shared<ComputedBytes>(size, "padding", [](uint64_t, std::span<std::byte> out) {
    std::ranges::fill(out, std::byte{});
  });
}

void MergedTensor::read(uint64_t offset, std::span<std::byte> out) const {
  check_range(offset, out.size(), "a merged tensor");
  const auto begin = static_cast<int64_t>(offset / element_size_);
  const auto end = begin + static_cast<int64_t>(out.size() / element_size_);
  for (const Part& part : parts_) {
    if (!part.is_copy) {
      read_part(part, begin, end, out);
      continue;
    }
    std::vector<std::byte> with_copy(out.begin(), out.end());
    read_part(part, begin, end, with_copy);
    const auto differs = std::ranges::mismatch(out, with_copy).in1 - out.begin();
    if (differs == static_cast<std::ptrdiff_t>(out.size())) continue;
    throw DamagedFile(what_ + ": should be the same on all tp ranks that have it, but element " +
                      std::to_string(begin + differs / static_cast<int64_t>(element_size_)) +
                      " is not");
  }
}

// Copies the part's elements of [begin, end) of the full tensor to their places in `out`.
void MergedTensor::read_part(const Part& part, int64_t begin, int64_t end,
                             std::span<std::byte> out) const {
  const int64_t first = part.layout.shard_position(begin), last = part.layout.shard_position(end);
  auto fragment =
      std::upper_bound(part.fragments->begin(), part.fragments->end(), first,
                       [](int64_t at, const ShardFragment& f) { return at < f.begin + f.numel; });
  for (; fragment != part.fragments->end() && fragment->begin < last; ++fragment) {
    read_fragment(part, *fragment, std::max(first, fragment->begin),
                  std::min(last, fragment->begin + fragment->numel), begin, out);
  }
}

// Copies shard elements [begin, end) of one fragment to their places. Reads straight to the place
// if there is only one, which is the case unless columns are cut. Then reads the vocabulary's
// padding too, so that the record's CRC can be checked.
void MergedTensor::read_fragment(const Part& part, const ShardFragment& fragment, int64_t begin,
                                 int64_t end, int64_t full_begin, std::span<std::byte> out) const {
  constexpr int64_t kRows = 256 << 10;  // elements that are read before they are scattered
  const auto bytes = [this](int64_t elements) {
    return static_cast<size_t>(elements) * element_size_;
  };
  int runs = 0;
  ShardRun only{};
  part.layout.for_each_run(begin, end - begin, [&](int64_t full, int64_t shard, int64_t count) {
    only = {full, shard, count};
    ++runs;
  });
  if (runs == 1) {
    fragment.bytes->read(fragment.offset + bytes(only.shard - fragment.begin),
                         out.subspan(bytes(only.full - full_begin), bytes(only.count)));
    begin = only.shard + only.count;
  }
  std::vector<std::byte> rows(bytes(std::min(kRows, end - begin)));
  for (; begin < end; begin += kRows) {
    const int64_t n = std::min(kRows, end - begin);
    fragment.bytes->read(fragment.offset + bytes(begin - fragment.begin),
                         std::span(rows).first(bytes(n)));
    part.layout.for_each_run(begin, n, [&](int64_t full, int64_t shard, int64_t count) {
      std::memcpy(out.data() + bytes(full - full_begin), rows.data() + bytes(shard - begin),
                  bytes(count));
    });
  }
}

void append_pieces(std::vector<MergedTensor::Part>& parts, const ShardLayout& layout,
                   const std::string& name, const std::string& state, const FragmentsPtr& fragments,
                   DType dtype) {
  for (size_t i = 0; i < layout.pieces().size(); ++i) {
    const auto& [full_begin, shard_begin, width, scale, is_copy] = layout.pieces()[i];
    parts.push_back({layout.only(i), fragments, is_copy});
    if (scale == 1) continue;
    if (dtype != DType::kFloat32)
      throw Unreadable(name + ": an affine map scales it, but its " + state + " is not float32");
    std::vector<ShardFragment> scaled = *fragments;
    for (ShardFragment& fragment : scaled)
      fragment.bytes = divided(fragment.bytes, factor_of_state(scale, state));
    parts.back().fragments = std::make_shared<const std::vector<ShardFragment>>(std::move(scaled));
  }
}

BytesPtr replicated(const std::string& name, const std::vector<BytesPtr>& replicas, DType dtype,
                    const std::string& ranks) {
  const auto whole = [=](size_t rank) {
    const auto count = static_cast<int64_t>(replicas[rank]->size() / element_size(dtype));
    return TensorRecord{dtype, {count}, false, replicas[rank]};
  };
  const auto read = [=](uint64_t offset, std::span<std::byte> out) {
    replicas[0]->read(offset, out);
    std::vector<std::byte> other(out.size());
    for (size_t i = 1; i < replicas.size(); ++i) {
      replicas[i]->read(offset, other);
      if (std::memcmp(out.data(), other.data(), out.size()) == 0) continue;
      throw DamagedFile(name + ": should be the same on all " + ranks + ", but rank " +
                        std::to_string(i) + "'s " + compare_tensors(whole(0), whole(i)).text() +
                        " from rank 0's");
    }
  };
  return std::make_shared<ComputedBytes>(replicas[0]->size(), name, read);
}

BytesPtr averaged(const std::vector<BytesPtr>& replicas) {
  const auto read = [replicas](uint64_t offset, std::span<std::byte> out) {
    std::vector<float> sum(out.size() / sizeof(float)), next(sum.size());
    for (const BytesPtr& replica : replicas) {
      replica->read(offset, std::as_writable_bytes(std::span(next)));
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += next[i];
    }
    for (float& value : sum) value /= static_cast<float>(replicas.size());
    std::memcpy(out.data(), sum.data(), out.size());
  };
  return std::make_shared<ComputedBytes>(replicas[0]->size(), "an averaged tensor", read);
}

}  // namespace anymesh
