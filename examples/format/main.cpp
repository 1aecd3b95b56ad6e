// Prints the name, shape and norm of each parameter of any checkpoint:  norms CHECKPOINT
#include <cmath>
#include <cstdio>
#include <exception>

#include "framework/format/sharded.h"
#include "framework/format/whole.h"

using namespace anymesh;

int main(int argc, char** argv) try {
  const Checkpoint checkpoint = open_checkpoint(argc > 1 ? argv[1] : ".", /*threads=*/4);
  for (const std::string& name : checkpoint.names()) {
    const TensorRecord weight = as_float32(checkpoint.parameter(name).weight());
    std::vector<float> values(static_cast<size_t>(weight.numel()));
    weight.bytes->read(0, std::as_writable_bytes(std::span(values)));
    double squares = 0;
    for (const float value : values) squares += double{value} * double{value};
    std::printf("%s %s %.6g\n", name.c_str(), to_string(weight.shape).c_str(), std::sqrt(squares));
  }
} catch (const std::exception& error) {
  std::fprintf(stderr, "norms: %s\n", error.what());
  return 1;
}
