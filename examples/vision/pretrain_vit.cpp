// Trains a ViT to say where in an image a bright bar is:
//
//   pretrain_vit --local-ranks 4 --tensor-model-parallel-size 2 --zero-stage 3 --train-iters 60
//       --global-batch-size 32 --micro-batch-size 4 --lr 5e-3 --loss-csv loss.csv
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>

#include <cmath>

#include "vit.h"

using namespace anymesh;

namespace {

// Noise with a bright column for each class, and as many samples as are asked for.
class Bars final : public SampleSource {
 public:
  Bars(int64_t size, uint64_t seed, const VitConfig& vit) : size_(size), seed_(seed), vit_(vit) {}

  int64_t size() const override { return size_; }

  MicroBatch batch(std::span<const int64_t> samples) const override {
    const int64_t size = vit_.img_size;
    std::vector<torch::Tensor> images;
    std::vector<int64_t> labels;
    for (const int64_t sample : samples) {
      const auto random =
          at::detail::createCPUGenerator(seed_ << 32 ^ static_cast<uint64_t>(sample));
      labels.push_back(at::randint(vit_.num_classes, {1}, random, torch::kLong).item<int64_t>());
      images.push_back(at::rand({1, size, size}, random, torch::kFloat));
      images.back().select(2, labels.back() * size / vit_.num_classes).add_(2);
    }
    return {.inputs = at::stack(images), .labels = to_tensor(labels)};  // [b, 1, 16, 16], [b]
  }

 private:
  int64_t size_;
  uint64_t seed_;
  VitConfig vit_;
};

const VitConfig& config_of(const ModelDefinition& model) {
  return static_cast<const Vit&>(model).config();
}

OwnDatasets bars(const Config& config, const ModelDefinition& model, const SampleCounts& counts) {
  const VitConfig& vit = config_of(model);
  const uint64_t seed = config.run.seed;
  return {.name = "bars",
          .facts = {{"seed", std::to_string(seed)}, {"classes", std::to_string(vit.num_classes)}},
          .train = std::make_unique<Bars>(counts.train, seed, vit),
          .valid = std::make_unique<Bars>(counts.valid, seed + 1, vit)};
}

// A warmup, and then the inverse square root.
OwnSchedule rise_and_fall(const Config&, const ModelDefinition&, double /*run_samples*/) {
  constexpr double kPeak = 160;
  return {.name = "rise and fall around sample 160", .factor = [](double samples) {
            return samples < kPeak ? (samples + 1) / kPeak : std::sqrt(kPeak / samples);
          }};
}

// The images that are classified right, and all of them. Without logits, which other stages than
// the last one have, it counts none.
struct Score {
  double right = 0, images = 0;

  void add(Engine& engine, const std::vector<MicroBatch>& batches) {
    const std::vector<torch::Tensor> logits = engine.predict(batches);  // [b, c]
    for (size_t i = 0; i < logits.size(); ++i) {
      right += (logits[i].argmax(1) == batches[i].labels).sum().item<double>();
      images += static_cast<double>(batches[i].labels.size(0));
    }
  }
  Metrics metrics() const { return {{"accuracy", right / images}}; }
};

Metrics accuracy_of_step(const StepView& step) {
  Score score;
  score.add(step.engine, step.batches);
  return score.metrics();
}

Metrics accuracy(const ValidationView& validation) {
  Score score;
  validation.for_each(
      [&](const std::vector<MicroBatch>& batches) { score.add(validation.engine, batches); });
  return score.metrics();
}

}  // namespace

int main(int argc, char** argv) {
  return pretrain(argc, argv,
                  {.name = "pretrain_vit",
                   .description = "Trains a ViT to find a bar in an image, on any mesh.",
                   .model = make_model<Vit>,
                   .datasets = bars,
                   .schedule = rise_and_fall,
                   .metrics = {"accuracy"},
                   .on_step = accuracy_of_step,
                   .evaluate = accuracy});
}
