#include "framework/kernels/attention.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>

#include "framework/kernels/block_gemm.h"
#include "framework/kernels/dispatch.h"
#include "framework/kernels/softmax_rows.h"

namespace anymesh {
namespace {

constexpr int64_t kRows = 64;  // queries at a time; keys are padded to a multiple of it

int64_t padded(int64_t n) { return (n + kRows - 1) / kRows * kRows; }

// Rotates elements i and i + half of a head together, as in GPT-NeoX and Llama. Sign -1 rotates
// back.
template <class T>
void rotate(T* head, const float* cos, const float* sin, int64_t half, float sign) {
  for (int64_t i = 0; i < half; ++i) {
    const auto a = static_cast<float>(head[i]), b = static_cast<float>(head[i + half]);
    head[i] = static_cast<T>(a * cos[i] - b * sign * sin[i]);
    head[i + half] = static_cast<T>(b * cos[i] + a * sign * sin[i]);
  }
}

struct QkvShape {
  explicit QkvShape(const torch::Tensor& qkv)
      : b(qkv.size(0)),
        s(qkv.size(1)),
        groups(qkv.size(2)),
        heads(qkv.size(3) - 2),
        d(qkv.size(4)) {}
  int64_t row() const { return groups * (heads + 2) * d; }  // elements of a position
  // Returns the index of position 0 of a group's head. Head `heads` is the key, and the one after
  // it the value.
  int64_t at(int64_t sample, int64_t group, int64_t head) const {
    return sample * s * row() + (group * (heads + 2) + head) * d;
  }
  int64_t out_row() const { return groups * heads * d; }
  int64_t out_at(int64_t sample, int64_t group, int64_t head) const {
    return sample * s * out_row() + (group * heads + head) * d;
  }
  int64_t b, s, groups, heads, d;  // heads: queries per group
};

// Computes one group of heads of one sample, on one thread.
template <class T>
class Group {
  using Gemm = BlockGemm<T>;

 public:
  Group(const QkvShape& shape, const AttentionExtras& extras, const T* qkv)
      : n_(shape), extras_(extras), qkv_(qkv) {
    if (extras.bias) bias_ = extras.bias->template const_data_ptr<float>();
    if (extras.cos.defined()) {
      half_ = extras.cos.size(1);
      cos_ = extras.cos.to(torch::kFloat).contiguous();
      sin_ = extras.sin.to(torch::kFloat).contiguous();
    }
  }

  // Writes the group's out and log_sums [b, groups, heads, s].
  void forward(int64_t sample, int64_t group, T* out, float* log_sums) {
    take(sample, group);
    const auto value_rows = Gemm::pack(values_.at, values_.stride, width_, n_.d, rows_room_);
    for (int64_t head = 0; head < n_.heads; ++head) {
      float* log_sum = log_sums + ((sample * n_.groups + group) * n_.heads + head) * n_.s;
      for (int64_t first = 0; first < n_.s; first += kRows) {
        const int64_t rows = scores(sample, group, head, first), width = first + kRows;
        for (int64_t i = 0; i < rows; ++i) {
          const float* row = scores_ + i * width_;
          const float most = row_max(row, width) * scale_,
                      sum = softmax_row(row, scale_, most, factors(sample, group, head, first + i),
                                        width, weights_ + i * width);
          log_sum[first + i] = most + std::log(sum);
          inverse_sum_[i] = 1 / sum;
        }
        Gemm::run(rows, n_.d, width, weights_, width, value_rows, block_, n_.d, false);
        T* to = out + n_.out_at(sample, group, head) + first * n_.out_row();
        for (int64_t i = 0; i < rows; ++i)
          scale_row(block_ + i * n_.d, inverse_sum_[i], n_.d, to + i * n_.out_row());
      }
    }
  }

  // Writes the group's d qkv from d out.
  void backward(int64_t sample, int64_t group, const T* dout, const float* log_sums, T* dqkv) {
    take(sample, group);
    key_rows_ = Gemm::pack(keys_.at, keys_.stride, width_, n_.d, rows_room_);
    const auto value_columns =
        Gemm::pack_transposed(values_.at, values_.stride, n_.d, width_, value_columns_room_);
    std::fill_n(dkey_.data, n_.d * width_, 0.f);
    std::fill_n(dvalue_.data, n_.d * width_, 0.f);
    for (int64_t head = 0; head < n_.heads; ++head) {
      const float* log_sum = log_sums + ((sample * n_.groups + group) * n_.heads + head) * n_.s;
      for (int64_t first = 0; first < n_.s; first += kRows) {
        const int64_t rows = scores(sample, group, head, first), width = first + kRows;
        const T* from = dout + n_.out_at(sample, group, head) + first * n_.out_row();
        Gemm::run(rows, width, n_.d, from, n_.out_row(), value_columns, dweights_, width_, false);
        for (int64_t i = 0; i < rows; ++i) {
          float *row = scores_ + i * width_, *drow = dweights_ + i * width_;
          const float* dropout = factors(sample, group, head, first + i);
          const float mean =
              softmax_backward_sum(row, scale_, log_sum[first + i], dropout, drow, width);
          softmax_backward_row(row, drow, mean, 1 / root_, dropout, width, dscores_ + i * width,
                               weights_ + i * width);
        }
        std::fill(weights_ + rows * width, weights_ + kRows * width, T(0));
        std::fill(dscores_ + rows * width, dscores_ + kRows * width, T(0));
        query_gradient(sample, group, head, first, rows, dqkv);
        add_transposed(from, n_.out_row(), rows, weights_, width, dvalue_);
        add_transposed(queries_.at, queries_.stride, rows, dscores_, width, dkey_);
      }
    }
    give(dkey_, true, dqkv + n_.at(sample, group, n_.heads));
    give(dvalue_, false, dqkv + n_.at(sample, group, n_.heads + 1));
  }

 private:
  struct Rows {
    const T* at;
    int64_t stride;
  };

  // Takes the group's keys and values, one row a position.
  void take(int64_t sample, int64_t group) {
    keys_ = rows_of(n_.at(sample, group, n_.heads), 0, n_.s, width_, true, key_);
    values_ = rows_of(n_.at(sample, group, n_.heads + 1), 0, n_.s, width_, false, value_);
    key_columns_ = Gemm::pack_transposed(keys_.at, keys_.stride, n_.d, width_, key_columns_room_);
  }

  // Returns the rows of positions [first, first + rows) in place, or in `copy` if they must be
  // rotated or filled up with zeros to `wanted` rows.
  Rows rows_of(int64_t head, int64_t first, int64_t rows, int64_t wanted, bool turn, T* copy) {
    const T* from = qkv_ + head + first * n_.row();
    if (rows == wanted && (!turn || half_ == 0)) return {from, n_.row()};
    for (int64_t i = 0; i < rows; ++i) {
      std::copy_n(from + i * n_.row(), n_.d, copy + i * n_.d);
      if (turn) rotated(copy + i * n_.d, first + i, 1);
    }
    std::fill(copy + rows * n_.d, copy + wanted * n_.d, T(0));
    return {copy, n_.d};
  }

  void rotated(T* head, int64_t position, float sign) {
    if (half_ > 0)
      rotate(head, cos_.const_data_ptr<float>() + position * half_,
             sin_.const_data_ptr<float>() + position * half_, half_, sign);
  }

  // Computes the scores of the queries from `first` on with the keys up to the last of them, still
  // without the factor scale_. Returns the number of queries.
  int64_t scores(int64_t sample, int64_t group, int64_t head, int64_t first) {
    const int64_t rows = std::min(kRows, n_.s - first), width = first + kRows;
    queries_ = rows_of(n_.at(sample, group, head), first, rows, rows, true, query_);
    Gemm::run(rows, width, n_.d, queries_.at, queries_.stride, key_columns_, scores_, width_,
              false);
    for (int64_t i = 0; i < rows; ++i) {
      float* row = scores_ + i * width_;
      if (bias_) {
        const float* bias = bias_ + ((group * n_.heads + head) * n_.s + first + i) * n_.s;
        for (int64_t j = 0; j <= first + i; ++j) row[j] = row[j] / root_ + bias[j];
      }
      std::fill(row + first + i + 1, row + width, -INFINITY);
    }
    return rows;
  }

  // Returns dropout's factors for a query's weights; null without dropout.
  const float* factors(int64_t sample, int64_t group, int64_t head, int64_t query) {
    if (extras_.dropout == 0 || extras_.context.samples.empty()) return nullptr;
    const int64_t first = ((extras_.first_head + group * n_.heads + head) * n_.s + query) * n_.s;
    dropout_factors(factors_, query + 1, first, extras_.dropout, extras_.context,
                    {extras_.layer, DropoutSite::Attention}, sample);
    std::fill(factors_ + query + 1, factors_ + padded(query + 1), 0.f);
    return factors_;
  }

  void query_gradient(int64_t sample, int64_t group, int64_t head, int64_t first, int64_t rows,
                      T* dqkv) {
    const int64_t width = first + kRows;
    Gemm::run(rows, n_.d, width, dscores_, width, key_rows_, block_, n_.d, false);
    T* to = dqkv + n_.at(sample, group, head) + first * n_.row();
    for (int64_t i = 0; i < rows; ++i) {
      scale_row(block_ + i * n_.d, 1, n_.d, to + i * n_.row());
      rotated(to + i * n_.row(), first + i, -1);
    }
  }

  // sums [d, width_] += x^T y, for x [rows, d] and y [kRows, width]. Rows of y past `rows` are
  // zeros.
  void add_transposed(const T* x, int64_t stride, int64_t rows, const T* y, int64_t width,
                      float* sums) {
    transpose(x, stride, rows, n_.d, transposed_.data, kRows);
    for (int64_t i = 0; rows < kRows && i < n_.d; ++i)
      std::fill(transposed_ + i * kRows + rows, transposed_ + (i + 1) * kRows, T(0));
    const auto rows_of_y = Gemm::pack(y, width, kRows, width, packed_);
    Gemm::run(n_.d, width, kRows, transposed_, kRows, rows_of_y, sums, width_, true);
  }

  void give(float* sums, bool turn, T* to) {
    transpose(sums, width_, n_.d, n_.s, position_rows_.data, n_.d);
    for (int64_t i = 0; i < n_.s; ++i) {
      scale_row(position_rows_ + i * n_.d, 1, n_.d, to + i * n_.row());
      if (turn) rotated(to + i * n_.row(), i, -1);
    }
  }

  QkvShape n_;
  const AttentionExtras& extras_;
  const T* qkv_;
  int64_t width_ = padded(n_.s);
  float root_ = std::sqrt(static_cast<float>(n_.d)), scale_ = extras_.bias ? 1 : 1 / root_;
  const float* bias_ = nullptr;
  float inverse_sum_[kRows];
  int64_t half_ = 0;
  torch::Tensor cos_, sin_;
  Rows keys_{}, values_{}, queries_{};
  Buffer<T> key_{width_ * n_.d}, value_{width_ * n_.d}, query_{kRows * n_.d},
      transposed_{kRows * n_.d};
  Buffer<T> key_columns_room_{width_ * n_.d}, rows_room_{width_ * n_.d},
      value_columns_room_{width_ * n_.d};
  Packed<T> key_columns_{}, key_rows_{};
  Buffer<T> weights_{kRows * width_}, dscores_{kRows * width_}, packed_{kRows * width_};
  Buffer<float> scores_{kRows * width_}, dweights_{kRows * width_}, factors_{width_},
      block_{kRows * n_.d};
  Buffer<float> dkey_{n_.d * width_}, dvalue_{n_.d * width_}, position_rows_{n_.d * width_};
};

template <class T, class Work>
void for_each_group(const QkvShape& n, const AttentionExtras& extras, const torch::Tensor& qkv,
                    const Work& work) {
  at::parallel_for(0, n.b * n.groups, 1, [&](int64_t begin, int64_t end) {
    c10::NoGradGuard no_grad;
    Group<T> group(n, extras, qkv.const_data_ptr<T>());
    for (int64_t i = begin; i < end; ++i) work(group, i / n.groups, i % n.groups);
    BlockGemm<T>::release();
  });
}

struct ExtrasHolder : torch::CustomClassHolder {
  explicit ExtrasHolder(AttentionExtras e) : extras(std::move(e)) {}
  AttentionExtras extras;
};

// Converts bf16 to fp32 if the CPU has no units for it.
torch::Tensor computed(const torch::Tensor& x) {
  const bool units = x.scalar_type() == torch::kFloat || BlockGemm<c10::BFloat16>::has_units();
  return units ? x : x.to(torch::kFloat);
}

struct Attention : torch::autograd::Function<Attention> {
  static torch::Tensor forward(torch::autograd::AutogradContext* ctx, const torch::Tensor& qkv,
                               const AttentionExtras& extras) {
    RECORD_FUNCTION("anymesh::attention", c10::ArrayRef<const c10::IValue>{});
    const QkvShape n(qkv);
    const torch::Tensor x = computed(qkv);
    torch::Tensor out = torch::empty({n.b, n.s, n.out_row()}, x.options());
    const torch::Tensor log_sums = torch::empty({n.b, n.groups * n.heads, n.s}, torch::kFloat);
    of_dtype(x, [&]<class T>(T) {
      for_each_group<T>(n, extras, x, [&](Group<T>& group, int64_t sample, int64_t g) {
        group.forward(sample, g, out.data_ptr<T>(), log_sums.data_ptr<float>());
      });
    });
    ctx->save_for_backward({qkv, log_sums});
    ctx->saved_data["extras"] =
        c10::IValue::make_capsule(c10::make_intrusive<ExtrasHolder>(extras));
    return out.to(qkv.scalar_type());
  }

  static torch::autograd::tensor_list backward(torch::autograd::AutogradContext* ctx,
                                               torch::autograd::tensor_list grads) {
    RECORD_FUNCTION("anymesh::attention_backward", c10::ArrayRef<const c10::IValue>{});
    const auto saved = ctx->get_saved_variables();
    const torch::Tensor &qkv = saved[0], &log_sums = saved[1], x = computed(qkv),
                        dout = computed(grads[0].contiguous());
    const auto holder =
        c10::static_intrusive_pointer_cast<ExtrasHolder>(ctx->saved_data["extras"].toCapsule());
    torch::Tensor dqkv = torch::empty_like(x);
    const QkvShape n(qkv);
    of_dtype(x, [&]<class T>(T) {
      for_each_group<T>(n, holder->extras, x, [&](Group<T>& group, int64_t sample, int64_t g) {
        group.backward(sample, g, dout.const_data_ptr<T>(), log_sums.const_data_ptr<float>(),
                       dqkv.data_ptr<T>());
      });
    });
    return {dqkv.to(qkv.scalar_type()), {}};
  }
};

}  // namespace

bool can_fuse_attention(const torch::Tensor& qkv) {
  return has_cpu_kernels(qkv) && qkv.size(-1) % kRowMultiple == 0;
}

torch::Tensor fused_attention(const torch::Tensor& qkv, const AttentionExtras& extras) {
  TORCH_INTERNAL_ASSERT(can_fuse_attention(qkv) && qkv.is_contiguous());
  return Attention::apply(qkv, extras);
}

}  // namespace anymesh
