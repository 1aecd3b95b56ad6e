#include "framework/checkpoint/format/merged_tensor.h"

#include <bit>
#include <cinttypes>
#include <cmath>
#include <cstring>

#include "framework/printed.h"

namespace anymesh {
namespace {

constexpr uint64_t kChunk = 4 << 20;  // of tensors that are compared

struct ShardRun {
  int64_t full, shard, count;
};

// IEEE 754 half precision to single: exponent and mantissa move up, subnormals are renormalised.
float half_to_float(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t exponent = half >> 10 & 31, mantissa = half & 0x3FF;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7F800000 | mantissa << 13);
  if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
  return sign ? -magnitude : magnitude;
}

float bfloat16_to_float(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

template <typename T, typename Fn>
void convert_as(const std::byte* from, std::span<float> to, Fn&& fn) {
  for (size_t i = 0; i < to.size(); ++i) {
    T value;
    std::memcpy(&value, from + i * sizeof(T), sizeof(T));
    to[i] = fn(value);
  }
}

void convert(DType dtype, const std::byte* from, std::span<float> to) {
  const auto cast = [](auto value) { return static_cast<float>(value); };
  switch (dtype) {
    case DType::kFloat64:
      return convert_as<double>(from, to, cast);
    case DType::kFloat32:
      return convert_as<float>(from, to, cast);
    case DType::kFloat16:
      return convert_as<uint16_t>(from, to, half_to_float);
    case DType::kBFloat16:
      return convert_as<uint16_t>(from, to, bfloat16_to_float);
    case DType::kInt64:
      return convert_as<int64_t>(from, to, cast);
    case DType::kInt32:
      return convert_as<int32_t>(from, to, cast);
    case DType::kInt16:
      return convert_as<int16_t>(from, to, cast);
    case DType::kInt8:
      return convert_as<int8_t>(from, to, cast);
    case DType::kUInt8:
    case DType::kBool:
      return convert_as<uint8_t>(from, to, cast);
  }
}

// Notes those elements of a chunk, from element `first` on, whose bits differ.
void compare_chunk(DType dtype, std::span<const std::byte> a, std::span<const std::byte> b,
                   int64_t first, TensorDifference& result) {
  const uint64_t size = element_size(dtype);
  std::vector<float> values_a(a.size() / size), values_b(values_a.size());
  convert(dtype, a.data(), values_a);
  convert(dtype, b.data(), values_b);
  for (size_t i = 0; i < values_a.size(); ++i) {
    if (std::memcmp(&a[i * size], &b[i * size], size) == 0) continue;
    const double difference = std::abs(static_cast<double>(values_a[i]) - values_b[i]);
    const bool most = result.count++ == 0 || !(difference <= result.largest);
    if (!most || std::isnan(result.largest)) continue;
    result.largest = difference;
    result.where = first + static_cast<int64_t>(i);
  }
}

}  // namespace

TensorRecord as_float32(const TensorRecord& tensor) {
  if (tensor.dtype == DType::kFloat32) return {DType::kFloat32, tensor.shape, false, tensor.bytes};
  const auto read = [tensor](uint64_t offset, std::span<std::byte> out) {
    const uint64_t from_size = element_size(tensor.dtype);
    std::vector<std::byte> from(out.size() / sizeof(float) * from_size);
    tensor.bytes->read(offset / sizeof(float) * from_size, from);
    std::vector<float> to(out.size() / sizeof(float));
    convert(tensor.dtype, from.data(), to);
    std::memcpy(out.data(), to.data(), out.size());
  };
  const uint64_t size = static_cast<uint64_t>(tensor.numel()) * sizeof(float);
  return {DType::kFloat32, tensor.shape, false,
          std::make_shared<ComputedBytes>(size, "a converted tensor", read)};
}

std::string TensorDifference::text() const {
  return printed("differs in %" PRId64 " of %" PRId64
                 " elements, at most by %.3e at element %" PRId64,
                 count, numel, largest, where);
}

TensorDifference compare_tensors(const TensorRecord& a, const TensorRecord& b) {
  TensorDifference result{.numel = a.numel()};
  std::vector<std::byte> bytes_a(std::min(kChunk, a.nbytes())), bytes_b(bytes_a.size());
  for (uint64_t offset = 0; offset < a.nbytes(); offset += kChunk) {
    const uint64_t count = std::min(kChunk, a.nbytes() - offset);
    const auto from_a = std::span(bytes_a).first(count), from_b = std::span(bytes_b).first(count);
    a.bytes->read(offset, from_a);
    b.bytes->read(offset, from_b);
    if (std::memcmp(from_a.data(), from_b.data(), count) == 0) continue;
    const auto first = static_cast<int64_t>(offset / element_size(a.dtype));
    compare_chunk(a.dtype, from_a, from_b, first, result);
  }
  return result;
}

MergedTensor::MergedTensor(std::vector<Part> parts, DType dtype)
    : parts_(std::move(parts)),
      element_size_(element_size(dtype)),
      size_(static_cast<uint64_t>(parts_[0].layout.full_numel()) * element_size_) {}

BytesPtr joined(const Shape& shape, std::vector<SourceFragment> fragments, DType dtype) {
  const ShardLayout whole = ShardLayout::make(shape, {.replicated = true}, 1, 0);
  return std::make_shared<MergedTensor>(
      std::vector<MergedTensor::Part>{{whole, std::move(fragments)}}, dtype);
}

void MergedTensor::read(uint64_t offset, std::span<std::byte> out) const {
  check_range(offset, out.size(), "a merged tensor");
  const auto begin = static_cast<int64_t>(offset / element_size_);
  const auto end = begin + static_cast<int64_t>(out.size() / element_size_);
  for (const Part& part : parts_) {
    const int64_t first = part.layout.shard_position(begin), last = part.layout.shard_position(end);
    auto fragment = std::upper_bound(
        part.fragments.begin(), part.fragments.end(), first,
        [](int64_t at, const SourceFragment& f) { return at < f.begin + f.numel; });
    for (; fragment != part.fragments.end() && fragment->begin < last; ++fragment) {
      read_fragment(part, *fragment, std::max(first, fragment->begin),
                    std::min(last, fragment->begin + fragment->numel), begin, out);
    }
  }
}

// Shard elements [begin, end) of one fragment to their places. Reads straight to the place when it
// is only one, as it is unless columns are cut; and then the vocabulary's padding, for the sake of
// the record's CRC.
void MergedTensor::read_fragment(const Part& part, const SourceFragment& fragment, int64_t begin,
                                 int64_t end, int64_t full_begin, std::span<std::byte> out) const {
  constexpr int64_t kRows = 256 << 10;  // elements that are read before they are dealt out
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
    fragment.bytes->read(bytes(only.shard - fragment.begin),
                         out.subspan(bytes(only.full - full_begin), bytes(only.count)));
    begin = only.shard + only.count;
  }
  std::vector<std::byte> rows(bytes(std::min(kRows, end - begin)));
  for (; begin < end; begin += kRows) {
    const int64_t n = std::min(kRows, end - begin);
    fragment.bytes->read(bytes(begin - fragment.begin), std::span(rows).first(bytes(n)));
    part.layout.for_each_run(begin, n, [&](int64_t full, int64_t shard, int64_t count) {
      std::memcpy(out.data() + bytes(full - full_begin), rows.data() + bytes(shard - begin),
                  bytes(count));
    });
  }
}

BytesPtr replicated(const std::string& name, const std::vector<BytesPtr>& replicas, DType dtype) {
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
      throw ValueError(name + ": should be the same on all tp ranks, but that of rank " +
                       std::to_string(i) + " " + compare_tensors(whole(0), whole(i)).text() +
                       " from that of rank 0");
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
