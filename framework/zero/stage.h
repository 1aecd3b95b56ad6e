#pragma once

namespace anymesh {

// A stage of ZeRO (arXiv:1910.02054): what the data-parallel ranks hold in partitions instead of
// whole. Each stage adds to the one before.
//
//   stage  gradients  optimizer  parameters        traffic a step, m micro-batches, in parameters
//   0      whole      whole      whole             2      all-reduce of gradients
//   1      whole      partition  whole             2      reduce-scatter, all-gather of parameters
//   2      partition  partition  whole             1 + m  reduce-scatter a micro-batch, all-gather
//   3      partition  partition  partition, whole  3m     two gathers and a reduce-scatter a
//                                units when used          micro-batch
//
// Flags and files have the number. All other code asks what is in partitions.
class ZeroStage {
 public:
  constexpr ZeroStage(int number) : number_(number) {}

  constexpr int number() const { return number_; }
  constexpr bool partitions_optimizer() const { return number_ >= 1; }
  constexpr bool partitions_gradients() const { return number_ >= 2; }
  constexpr bool partitions_parameters() const { return number_ >= 3; }

 private:
  int number_;
};

}  // namespace anymesh
