#include "framework/zero/gradient_sum.h"

#include <ATen/Functions.h>
#include <ATen/OpMathType.h>

#include <utility>

#include "framework/kernels/adamw_sweeps.h"
#include "framework/kernels/gradient_sink.h"

namespace anymesh {
namespace {

// Whether LibTorch adds a product of tensors such as dy to sums.
bool adds_products(const torch::Tensor& sums, const torch::Tensor& dy) {
  return sums.is_cuda() || (!sums.is_cpu() && dy.scalar_type() == sums.scalar_type());
}

// sums [n, k] += dy [t, n]^T x [t, k], or = if they are stale
void add_product_to(torch::Tensor sums, const torch::Tensor& dy, const torch::Tensor& x,
                    bool stale) {
  if (dy.scalar_type() != sums.scalar_type())
    at::addmm_out(sums, sums, dy.t(), x, sums.scalar_type(), stale ? 0 : 1);
  else
    at::addmm_out(sums, sums, dy.t(), x, stale ? 0 : 1);
}

}  // namespace

torch::Tensor coalesced(const torch::Tensor& gradient) {
  const torch::Dtype dtype = gradient.scalar_type();
  return gradient.to(at::toOpMathType(dtype)).coalesce().to(dtype);
}

torch::Tensor dense(const torch::Tensor& gradient) {
  if (gradient.is_cpu()) return coalesced(gradient).to_dense();
  const torch::Dtype dtype = gradient.scalar_type();
  return at::zeros(gradient.sizes(), gradient._values().options().dtype(at::toOpMathType(dtype)))
      .index_add_(0, gradient._indices()[0], gradient._values().to(at::toOpMathType(dtype)))
      .to(dtype);
}

void GradientSum::add(const torch::Tensor& gradient) {
  if (gradient.is_sparse() && gradient.is_cpu()) return add_rows(gradient);
  only_rows_ = false;
  if (exact_ && gradient.is_floating_point())
    return exact_->add(gradient, sums_, std::exchange(stale_, false));
  if (gradient.is_sparse()) {  // a device would have to be waited for to know which rows there are
    if (std::exchange(stale_, false)) sums_.zero_();
    sums_.view({-1, gradient.size(1)})
        .index_add_(0, gradient._indices()[0], gradient._values().to(sums_.scalar_type()));
    return;
  }
  if (std::exchange(stale_, false)) {
    widen(gradient, sums_);
  } else {
    sums_.add_(gradient.flatten());
  }
}

bool GradientSum::add_product(const torch::Tensor& dy, const torch::Tensor& x) {
  if (exact_) {
    only_rows_ = false;
    exact_->add_product(dy, x, sums_, std::exchange(stale_, false));
    return true;
  }
  if (!adds_products(sums_, dy)) return false;
  only_rows_ = false;
  add_product_to(sums_.view({dy.size(-1), x.size(-1)}), dy.flatten(0, -2), x.flatten(0, -2),
                 std::exchange(stale_, false));
  return true;
}

bool GradientSum::add_groups(const torch::Tensor& dy, const torch::Tensor& x,
                             const std::vector<int64_t>& counts) {
  if (exact_ || !adds_products(sums_, dy)) return false;
  only_rows_ = false;
  const bool stale = std::exchange(stale_, false);
  const torch::Tensor sums =
      sums_.view({static_cast<int64_t>(counts.size()), dy.size(1), x.size(1)});
  for_groups(counts, [&](int64_t e, int64_t first, int64_t rows) {
    if (rows > 0)
      add_product_to(sums[e], dy.narrow(0, first, rows), x.narrow(0, first, rows), stale);
    else if (stale)
      sums[e].zero_();
  });
  return true;
}

bool GradientSum::add_parts(const torch::Tensor& parts) {
  if (sums_.is_cpu() || parts.scalar_type() != sums_.scalar_type()) return false;
  only_rows_ = false;
  if (std::exchange(stale_, false)) {
    at::sum_out(sums_, parts, {0});
  } else {
    sums_.add_(parts.sum(0));
  }
  return true;
}

void GradientSum::add_rows(const torch::Tensor& gradient) {
  if (std::exchange(stale_, false)) clear();
  width_ = gradient.size(1);
  const torch::Tensor each = exact_ ? gradient : coalesced(gradient), rows = each._indices()[0];
  sums_.view({-1, width_})
      .index_add_(
          0, rows,
          exact_ ? exact_->units_of_parts(each._values()) : each.values().to(sums_.scalar_type()));
  rows_.push_back(rows);
}

void GradientSum::finish() {
  if (std::exchange(stale_, false)) clear();
  only_rows_ = only_rows_ && alone_;
}

void GradientSum::clear() {
  if (only_rows_) {
    for (const torch::Tensor& rows : rows_) sums_.view({-1, width_}).index_fill_(0, rows, 0);
  } else {
    sums_.zero_();
  }
  rows_.clear();
  only_rows_ = true;
}

void GradientSum::add_to(const torch::Tensor& whole) const {
  if (!only_rows_) {
    whole.add_(sums_);
  } else if (!rows_.empty()) {
    const torch::Tensor rows = std::get<0>(at::_unique(at::cat(rows_)));
    whole.view({-1, width_}).index_add_(0, rows, sums_.view({-1, width_}).index_select(0, rows));
  }
}

}  // namespace anymesh
