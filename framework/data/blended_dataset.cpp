#include "framework/data/blended_dataset.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "framework/util/errors.h"
#include "framework/util/format.h"
#include "framework/util/parse_number.h"

namespace anymesh {
namespace {

constexpr int64_t kSamplesPerNote = 512;

// Adds float64 as numpy.sum does, in eight lanes.
double numpy_sum(std::span<const double> values) {
  if (values.size() > 128) {
    const size_t half = values.size() / 2 - values.size() / 2 % 8;
    return numpy_sum(values.first(half)) + numpy_sum(values.subspan(half));
  }
  double sum = 0;
  size_t i = 0;
  if (values.size() >= 8) {
    double lane[8] = {};
    for (; i + 8 <= values.size(); i += 8)
      for (size_t j = 0; j < 8; ++j) lane[j] += values[i + j];
    sum = ((lane[0] + lane[1]) + (lane[2] + lane[3])) + ((lane[4] + lane[5]) + (lane[6] + lane[7]));
  }
  for (; i < values.size(); ++i) sum += values[i];
  return sum;
}

}  // namespace

Blend parse_blend(const std::vector<std::string>& data_path) {
  if (data_path.size() == 1) return {data_path, {}};
  Blend blend;
  for (size_t i = 0; i < data_path.size(); i += 2)
    if (const auto weight = parse_number<double>(data_path[i])) blend.weights.push_back(*weight);
  if (blend.weights.empty()) return {data_path, {}};
  const std::string given = " " + joined(data_path, " ");
  if (blend.weights.size() * 2 != data_path.size())
    throw_error("--data-path", given, ": expected WEIGHT PREFIX WEIGHT PREFIX..., ",
                "or prefixes without any weight");
  for (size_t i = 0; i < blend.weights.size(); ++i) {
    if (!(blend.weights[i] > 0 && std::isfinite(blend.weights[i])))
      throw_error("--data-path", given, ": the weight ", data_path[2 * i],
                  ": expected a number above 0; leave the data set out otherwise");
    blend.prefixes.push_back(data_path[2 * i + 1]);
  }
  if (!std::isfinite(numpy_sum(blend.weights)))
    throw_error("--data-path", given, ": the weights' sum is too large");
  return blend;
}

std::vector<double> normalized(std::span<const double> weights) {
  std::vector<double> shares(weights.begin(), weights.end());
  // Megatron normalizes twice, and the second time may change the last bit.
  for (int time = 0; time < 2; ++time) {
    const double sum = numpy_sum(shares);
    for (double& share : shares) share /= sum;
  }
  return shares;
}

int64_t samples_of_share(double weight, int64_t samples) {
  return std::llround(std::ceil(std::ceil(static_cast<double>(samples) * weight) * 1.005));
}

BlendOrder::BlendOrder(std::vector<double> weights, int64_t size)
    : weights_(std::move(weights)), size_(size), counts_(weights_.size()) {
  noted_.reserve((size + kSamplesPerNote - 1) / kSamplesPerNote * weights_.size());
  for (int64_t i = 0; i < size; ++i) {
    if (i % kSamplesPerNote == 0) noted_.insert(noted_.end(), counts_.begin(), counts_.end());
    ++counts_[next(i, counts_)];
  }
}

// Returns the data set that gives sample `index`. `given` counts the samples each gave before.
size_t BlendOrder::next(int64_t index, std::span<double> given) const {
  const auto n = static_cast<double>(std::max<int64_t>(index, 1));
  size_t furthest = 0;
  double most = weights_[0] * n - given[0];
  for (size_t i = 1; i < given.size(); ++i) {
    const double behind = weights_[i] * n - given[i];
    if (behind > most) {
      most = behind;
      furthest = i;
    }
  }
  return furthest;
}

BlendOrder::Source BlendOrder::at(int64_t index) const {
  const auto note = noted_.begin() + index / kSamplesPerNote * std::ssize(weights_);
  std::vector<double> given(note, note + std::ssize(weights_));
  for (int64_t i = index / kSamplesPerNote * kSamplesPerNote; i < index; ++i)
    ++given[next(i, given)];
  const size_t dataset = next(index, given);
  return {static_cast<int64_t>(dataset), static_cast<int64_t>(given[dataset])};
}

BlendedDataset::BlendedDataset(std::vector<std::unique_ptr<Dataset>> datasets,
                               std::span<const double> weights, int64_t size, std::string name)
    : datasets_(std::move(datasets)), order_(normalized(weights), size), name_(std::move(name)) {
  for (size_t i = 0; i < datasets_.size(); ++i) {
    if (order_.count(i) <= datasets_[i]->size()) continue;
    throw_error(name_, " data: the blend takes ", order_.count(i), " samples of data set ", i + 1,
                " of --data-path, which has ", datasets_[i]->size());
  }
}

void BlendedDataset::sample(int64_t index, std::span<int64_t> out) const {
  check_request(name_, index, out);
  const BlendOrder::Source source = order_.at(index);
  datasets_[source.dataset]->sample(source.sample, out);
}

}  // namespace anymesh
