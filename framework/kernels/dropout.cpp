#include "framework/kernels/dropout.h"

#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <array>

#include "framework/kernels/cuda/kernels.h"
#include "framework/kernels/philox.h"
#include "framework/kernels/simd.h"

namespace anymesh {
namespace {

constexpr int64_t kBlocks = 64;          // Philox blocks drawn at a time
constexpr int64_t kChunk = 4 * kBlocks;  // elements they cover

// bits[4 * i + w] = word w of block first_block + i.
void draw(int64_t first_block, uint32_t stream, int64_t sample, uint64_t seed, uint32_t* bits) {
  const uint32_t word = stream_word(stream, first_block);  // of all blocks: 64 divides first_block
  with_widest_simd([=](auto) ANYMESH_INLINE_LAMBDA {
    for (int64_t i = 0; i < kBlocks; ++i) {
      const PhiloxBlock block =
          philox({static_cast<uint32_t>(first_block + i), word, static_cast<uint32_t>(sample),
                  static_cast<uint32_t>(sample >> 32)},
                 seed);
      for (int w = 0; w < 4; ++w) bits[4 * i + w] = block[w];
    }
  });
}

uint32_t stream_number(DropoutStream stream) {
  return stream.layer * 4 + static_cast<uint32_t>(stream.site);
}
uint32_t threshold(double p) { return static_cast<uint32_t>(p * 4294967296.0); }

// Calls use(i, bits, count) with the bits of elements [begin + i, begin + i + count) of one
// sample's tensor, until all n elements have had theirs.
template <class Use>
void for_each_chunk(int64_t begin, int64_t n, uint64_t seed, uint32_t stream, int64_t sample,
                    const Use& use) {
  std::array<uint32_t, kChunk> bits;
  int64_t i = 0;
  while (i < n) {
    const int64_t element = begin + i, block = element / kChunk * kBlocks, skip = element % kChunk;
    draw(block, stream, sample, seed, bits.data());
    const int64_t count = std::min(n - i, kChunk - skip);
    use(i, bits.data() + skip, count);
    i += count;
  }
}

// The arguments of dropout(), and all that backward keeps.
struct Mask : torch::CustomClassHolder {
  Mask(double probability, DropoutContext of, DropoutStream which, int64_t from)
      : p(probability), context(std::move(of)), stream(stream_number(which)), first(from) {}
  double p;
  DropoutContext context;
  uint32_t stream;
  int64_t first;
};

// y = mask * x * scale for elements [begin, begin + n) of one sample's tensor.
template <class T>
void drop(const T* x, T* y, int64_t n, int64_t begin, const Mask& mask, int64_t sample) {
  const uint32_t least = threshold(mask.p);
  using Wide = at::opmath_type<T>;
  const auto scale = static_cast<Wide>(1.0 / (1.0 - mask.p));
  for_each_chunk(
      begin, n, mask.context.seed, mask.stream, sample,
      [&](int64_t i, const uint32_t* bits, int64_t count) {
        for (int64_t j = 0; j < count; ++j)
          y[i + j] = bits[j] < least ? T(0) : static_cast<T>(static_cast<Wide>(x[i + j]) * scale);
      });
}

torch::Tensor masked(const torch::Tensor& input, const Mask& mask) {
  const torch::Tensor x = input.contiguous();
  if (!x.is_cpu() && !x.is_cuda())  // drawn on the CPU
    return x * masked(at::ones(x.sizes(), x.scalar_type()), mask).to(x.device());
  torch::Tensor y = torch::empty_like(x);
  const auto samples = static_cast<int64_t>(mask.context.samples.size());
  const int64_t n = x.numel() / samples;
  if (x.is_cuda()) {
    for (int64_t b = 0; b < samples; ++b)
      cuda_dropout(x[b].view(-1), y[b].view(-1),
                   {.seed = mask.context.seed,
                    .stream = mask.stream,
                    .sample = mask.context.samples[static_cast<size_t>(b)],
                    .first = mask.first,
                    .least = threshold(mask.p),
                    .scale = 1.0 / (1.0 - mask.p)});
    return y;
  }
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kBFloat16, at::kHalf, x.scalar_type(), "dropout", [&] {
    const scalar_t* from = x.const_data_ptr<scalar_t>();
    scalar_t* to = y.data_ptr<scalar_t>();
    at::parallel_for(0, samples * n, 64 * kChunk, [&](int64_t begin, int64_t end) {
      while (begin < end) {
        const int64_t b = begin / n, offset = begin % n, count = std::min(end - begin, n - offset);
        drop(from + begin, to + begin, count, mask.first + offset, mask,
             mask.context.samples[static_cast<size_t>(b)]);
        begin += count;
      }
    });
  });
  return y;
}

struct Dropout : torch::autograd::Function<Dropout> {
  static torch::Tensor forward(torch::autograd::AutogradContext* ctx, const torch::Tensor& x,
                               const c10::intrusive_ptr<Mask>& mask) {
    ctx->saved_data["mask"] = c10::IValue::make_capsule(mask);
    return masked(x, *mask);
  }
  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* ctx,
                                               torch::autograd::tensor_list grads) {
    const auto mask = ctx->saved_data["mask"].toCapsule();
    return {masked(grads[0], static_cast<const Mask&>(*mask)), {}};
  }
};

}  // namespace

torch::Tensor dropout(const torch::Tensor& x, double p, const DropoutContext& context,
                      DropoutStream stream, int64_t first) {
  if (p == 0.0 || context.samples.empty()) return x;
  TORCH_INTERNAL_ASSERT(x.size(0) == static_cast<int64_t>(context.samples.size()));
  return Dropout::apply(x, c10::make_intrusive<Mask>(p, context, stream, first));
}

void dropout_factors(float* factors, int64_t n, int64_t first, double p,
                     const DropoutContext& context, DropoutStream stream, int64_t row) {
  const uint32_t least = threshold(p);
  const auto scale = static_cast<float>(1.0 / (1.0 - p));
  for_each_chunk(first, n, context.seed, stream_number(stream),
                 context.samples[static_cast<size_t>(row)],
                 [&](int64_t i, const uint32_t* bits, int64_t count) {
                   for (int64_t j = 0; j < count; ++j)
                     factors[i + j] = bits[j] < least ? 0.f : scale;
                 });
}

}  // namespace anymesh
