#include "framework/kernels/fixed_order.h"

#include <ATen/Functions.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <atomic>
#include <vector>

#include "framework/kernels/block_product.h"
#include "framework/kernels/dispatch.h"
#include "framework/kernels/row_ops.h"
#include "framework/kernels/simd.h"

namespace anymesh {
namespace {

// A factor of a product: rows, or their transpose.
struct Factor {
  torch::Tensor rows;
  bool transposed = false;

  int64_t size(int64_t dim) const { return rows.size(transposed ? 1 - dim : dim); }
  // With zeros behind its columns, up to a multiple of kLanes.
  Factor whole_lanes() const {
    const int64_t more = (kLanes - size(1) % kLanes) % kLanes;
    if (more == 0) return *this;
    const auto pad =
        transposed ? std::vector<int64_t>{0, 0, 0, more} : std::vector<int64_t>{0, more};
    return {at::constant_pad_nd(rows, pad), transposed};
  }
  template <class T>
  Factor as() const {
    return {rows.to(c10::CppTypeToScalarType<T>::value).contiguous(), transposed};
  }
  template <class T>
  Matrix<T> matrix() const {
    return {rows.const_data_ptr<T>(), rows.stride(0), transposed};
  }
};

struct Blocks {
  int64_t blocks = 1, parts = 1, pieces = 1;
};

// Sums of gradients [m, n], to which a product is added.
struct ToUnits {
  int64_t* at;
  int64_t n;
  Grid grid;
  bool replaces;
  std::atomic<bool>* whole;  // becomes false if an element is left out

  void write(int64_t row, int64_t height, int64_t column, int64_t width, const float* sums,
             int64_t apart, int64_t piece) const {
    for (int64_t i = 0; i < height; ++i) {
      if (!add_units(sums + i * apart, grid, replaces && piece == 0, std::min(width, n - column),
                     at + (row + i) * n + column))
        *whole = false;
    }
  }
};

template <class T, class To>
void product_to(const Factor& a, const Factor& b, const To& to, Blocks in = {}) {
  RECORD_FUNCTION("anymesh::fixed_product", c10::ArrayRef<const c10::IValue>{});
  const Factor left = a.as<T>(), right = b.whole_lanes().template as<T>();
  BlockProduct<T, To>(a.size(0), right.size(1), a.size(1), left.template matrix<T>(),
                      right.template matrix<T>(), to)
      .in_blocks(in.blocks, in.parts)
      .in_pieces(in.pieces)
      .run();
}

template <class T, class Out>
torch::Tensor product(const Factor& a, const Factor& b, const torch::Tensor& bias, Blocks in) {
  const int64_t m = a.size(0), n = b.size(1), columns = (n + kLanes - 1) / kLanes * kLanes;
  torch::Tensor wide;
  if (bias.defined())
    wide = at::constant_pad_nd(bias.to(c10::CppTypeToScalarType<T>::value), {0, columns - n});
  const torch::Tensor c = torch::empty({m, columns}, c10::CppTypeToScalarType<Out>::value);
  product_to<T>(a, b,
                ToRows<T, Out>{c.data_ptr<Out>(), columns, c.numel(),
                               wide.defined() ? wide.const_data_ptr<T>() : nullptr},
                in);
  return c.narrow(1, 0, n);
}

// Tells if this CPU has units for a product in the model's type. Else it is in fp32.
bool has_units(const Factor& a, Blocks in = {}) {
  return a.rows.scalar_type() == torch::kBFloat16 && BlockGemm<c10::BFloat16>::has_matrix_units() &&
         a.size(1) / in.pieces / in.blocks / in.parts % 2 == 0;
}

torch::Tensor product(const Factor& a, const Factor& b, const torch::Tensor& bias, bool to_fp32,
                      Blocks in = {}) {
  const torch::Dtype dtype = a.rows.scalar_type();
  const torch::Tensor c = !has_units(a, in) ? product<float, float>(a, b, bias, in)
                          : to_fp32         ? product<c10::BFloat16, float>(a, b, bias, in)
                                            : product<c10::BFloat16, c10::BFloat16>(a, b, bias, in);
  return to_fp32 ? c : c.to(dtype);
}

torch::Tensor matrix(const torch::Tensor& x) { return x.flatten(0, -2); }

torch::Tensor like_rows(const torch::Tensor& c, const torch::Tensor& x) {
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = c.size(1);
  return c.reshape(shape);
}

}  // namespace

torch::Tensor fixed_y(const torch::Tensor& x, const torch::Tensor& weight,
                      const torch::Tensor& bias) {
  return like_rows(product({matrix(x)}, {weight, true}, bias, false), x);
}

torch::Tensor fixed_dw(const torch::Tensor& dy, const torch::Tensor& x) {
  return product({matrix(dy), true}, {matrix(x)}, {}, false);
}

bool fixed_dw_units(const torch::Tensor& dy, const torch::Tensor& x, Grid grid, bool replaces,
                    int64_t* units) {
  const Factor a{matrix(dy), true}, b{matrix(x)};
  std::atomic<bool> whole = true;
  const ToUnits to{units, b.size(1), grid, replaces, &whole};
  const Blocks in{.pieces = x.size(0)};
  has_units(a, in) ? product_to<c10::BFloat16>(a, b, to, in) : product_to<float>(a, b, to, in);
  return whole;
}

torch::Tensor fixed_dx(const torch::Tensor& dy, const torch::Tensor& weight) {
  return like_rows(product({matrix(dy)}, {weight}, {}, false), dy);
}

torch::Tensor fixed_y_in_blocks(const torch::Tensor& x, const torch::Tensor& weight,
                                int64_t blocks) {
  return like_rows(product({matrix(x)}, {weight, true}, {}, true, {.blocks = blocks}), x);
}

torch::Tensor fixed_dx_in_blocks(const torch::Tensor& dy, const torch::Tensor& weight,
                                 int64_t blocks, int64_t parts) {
  return like_rows(product({matrix(dy)}, {weight}, {}, true, {blocks, parts}), dy);
}

torch::Tensor fixed_row_sums(const torch::Tensor& x, int64_t rows) {
  const torch::Tensor all =
      (x.scalar_type() == torch::kHalf ? matrix(x).to(torch::kFloat) : matrix(x)).contiguous();
  const int64_t n = all.size(1), count = all.size(0), parts = (count + rows - 1) / rows;
  const torch::Tensor sums = torch::zeros({parts, n}, torch::kFloat);
  float* to = sums.data_ptr<float>();
  for_rows(all, parts, 1, [&]<class T>(int64_t part, T) {
    const T* from = all.const_data_ptr<T>();
    for (int64_t row = part * rows; row < std::min(count, (part + 1) * rows); ++row)
      add_row(from + row * n, n, to + part * n);
  });
  return sums;
}

}  // namespace anymesh
