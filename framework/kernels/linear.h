#pragma once

#include <torch/custom_class.h>
#include <torch/types.h>

#include <functional>

namespace anymesh {

// The input of a linear layer that other ranks have a part in (tensor_parallel/mappings.h). The
// backward starts what it needs of them, and computes in the meantime.
class SharedInput : public torch::CustomClassHolder {
 public:
  // Waits for the other ranks and returns the result.
  using Wait = std::function<torch::Tensor()>;

  // Starts to make the layer's input from this rank's `x`, which alone is kept for the backward.
  virtual Wait start_whole(const torch::Tensor& x) const = 0;
  // Starts to make the gradient of this rank's x from that of the layer's input. May write there.
  virtual Wait start_gradient(const torch::Tensor& dx) const = 0;
};

// Returns x W^T + b for x [..., k], W [n, k] and b [n] or undefined -> [..., n].
//
// On some CPUs fp32 and bf16 run in blocks of LibTorch's brgemm. Sums are kept in fp32 and rounded
// once, with the bias, and the number of threads does not change a bit. A call takes 5 us, where
// at::linear needs 20 before it multiplies bf16. On an x86 CPU without instructions for bf16 or
// fp16, LibTorch works element by element, so this calls widened_linear(). In all other cases,
// including sides that are not multiples of 16, the products are LibTorch's. A weight's sink gets
// the gradient right from the product, or makes it later.
torch::Tensor blocked_linear(const torch::Tensor& x, const torch::Tensor& weight,
                             const torch::Tensor& bias = {});
// The same of what `input` makes of x.
torch::Tensor shared_linear(const c10::intrusive_ptr<SharedInput>& input, const torch::Tensor& x,
                            const torch::Tensor& weight, const torch::Tensor& bias);

// Whether this CPU multiplies a type in blocks. It does bf16 if it has units for it (AMX,
// AVX512-BF16). It does fp32 if it has AVX-512 and is not Intel's: MKL, which at::linear calls,
// leaves AVX-512 unused there, and takes twice as long.
bool runs_in_blocks(torch::Dtype dtype);

// The products of such a layer without a bias, for kernels that put it together from parts. They
// write into a matrix whose rows lie one after the other, or apart:
//
//   linear_into      y [t, n] = x [t, k] W^T
//   linear_dx_into   dx [t, k] = dy [t, n] W, or added to what is there
//   linear_dw_into   dW [n, k] = dy^T x
void linear_into(const torch::Tensor& y, const torch::Tensor& x, const torch::Tensor& weight);
void linear_dx_into(const torch::Tensor& dx, const torch::Tensor& dy, const torch::Tensor& weight,
                    bool add);
void linear_dw_into(const torch::Tensor& dw, const torch::Tensor& dy, const torch::Tensor& x);

// The same for bf16 or fp16, by LibTorch's products in fp32, rounded once.
torch::Tensor widened_linear(const torch::Tensor& x, const torch::Tensor& weight,
                             const torch::Tensor& bias = {});

}  // namespace anymesh
