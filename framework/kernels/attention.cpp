#include "framework/kernels/attention.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "framework/kernels/block_gemm.h"
#include "framework/kernels/dispatch.h"
#include "framework/kernels/row_ops.h"

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
  int64_t qkv_stride() const { return groups * (heads + 2) * d; }  // elements of a position
  // Returns the index of position 0 of a group's head. Head `heads` is the key, and the one after
  // it the value.
  int64_t qkv_index(int64_t sample, int64_t group, int64_t head) const {
    return sample * s * qkv_stride() + (group * (heads + 2) + head) * d;
  }
  int64_t out_stride() const { return groups * heads * d; }
  int64_t out_index(int64_t sample, int64_t group, int64_t head) const {
    return sample * s * out_stride() + (group * heads + head) * d;
  }
  int64_t b, s, groups, heads, d;  // heads: queries per group
};

// Computes one group of heads of one sample, on one thread.
template <class T>
class HeadGroup {
  using Gemm = BlockGemm<T>;

 public:
  HeadGroup(const QkvShape& shape, const AttentionExtras& extras, const T* qkv)
      : shape_(shape), extras_(extras), qkv_(qkv) {
    if (extras.bias) bias_ = extras.bias->template const_data_ptr<float>();
    if (extras.positions.defined())
      positions_ = extras.positions.template const_data_ptr<int64_t>();
    if (extras.first_keys.defined())
      first_keys_ = extras.first_keys.template const_data_ptr<int64_t>();
    if (extras.cos.defined()) {
      rotated_half_ = extras.cos.size(1);
      cos_ = extras.cos.to(torch::kFloat).contiguous();
      sin_ = extras.sin.to(torch::kFloat).contiguous();
    }
  }

  // Writes the group's out and log_sums [b, groups, heads, s].
  void forward(int64_t sample, int64_t group, T* out, float* log_sums) {
    take_keys_and_values(sample, group);
    const auto value_rows = Gemm::pack(values_.at, values_.stride, width_, shape_.d, rows_room_);
    for (int64_t head = 0; head < shape_.heads; ++head) {
      float* log_sum =
          log_sums + ((sample * shape_.groups + group) * shape_.heads + head) * shape_.s;
      for (int64_t first = 0; first < shape_.s; first += kRows) {
        const int64_t rows = scores(sample, group, head, first), width = first + kRows - begin_;
        for (int64_t i = 0; i < rows; ++i) {
          const float* row = scores_ + i * width_;
          const float maximum = row_max(row, width) * scale_,
                      sum = exp_row(row, scale_, maximum, factors(sample, group, head, first + i),
                                    width, weights_ + i * width);
          log_sum[first + i] = maximum + std::log(sum);
          inverse_sum_[i] = 1 / sum;
        }
        Gemm::run(rows, shape_.d, width, weights_, width, value_rows.rows_from(begin_), block_,
                  shape_.d, false);
        T* to = out + shape_.out_index(sample, group, head) + first * shape_.out_stride();
        for (int64_t i = 0; i < rows; ++i)
          scale_row(block_ + i * shape_.d, inverse_sum_[i], shape_.d, to + i * shape_.out_stride());
      }
    }
  }

  // Writes the group's d qkv from d out.
  void backward(int64_t sample, int64_t group, const T* dout, const float* log_sums, T* dqkv) {
    take_keys_and_values(sample, group);
    key_rows_ = Gemm::pack(keys_.at, keys_.stride, width_, shape_.d, rows_room_);
    const auto value_columns =
        Gemm::pack_transposed(values_.at, values_.stride, shape_.d, width_, value_columns_room_);
    std::fill_n(dkey_.data, shape_.d * width_, 0.f);
    std::fill_n(dvalue_.data, shape_.d * width_, 0.f);
    for (int64_t head = 0; head < shape_.heads; ++head) {
      const float* log_sum =
          log_sums + ((sample * shape_.groups + group) * shape_.heads + head) * shape_.s;
      for (int64_t first = 0; first < shape_.s; first += kRows) {
        const int64_t rows = scores(sample, group, head, first), width = first + kRows - begin_;
        const T* from = dout + shape_.out_index(sample, group, head) + first * shape_.out_stride();
        Gemm::run(rows, width, shape_.d, from, shape_.out_stride(),
                  value_columns.columns_from(begin_), dweights_, width_, false);
        for (int64_t i = 0; i < rows; ++i) {
          float *row = scores_ + i * width_, *drow = dweights_ + i * width_;
          const float* dropout = factors(sample, group, head, first + i);
          const float mean =
              softmax_backward_sum(row, scale_, log_sum[first + i], dropout, drow, width);
          softmax_backward_row(row, drow, mean, 1 / root_d_, dropout, width, dscores_ + i * width,
                               weights_ + i * width);
        }
        std::fill(weights_ + rows * width, weights_ + kRows * width, T(0));
        std::fill(dscores_ + rows * width, dscores_ + kRows * width, T(0));
        query_gradient(sample, group, head, first, rows, dqkv);
        add_transposed(from, shape_.out_stride(), rows, weights_, width, dvalue_ + begin_);
        add_transposed(queries_.at, queries_.stride, rows, dscores_, width, dkey_ + begin_);
      }
    }
    write_gradient(dkey_, true, dqkv + shape_.qkv_index(sample, group, shape_.heads));
    write_gradient(dvalue_, false, dqkv + shape_.qkv_index(sample, group, shape_.heads + 1));
  }

 private:
  struct Rows {
    const T* at;
    int64_t stride;
  };

  // Takes the group's keys and values, one row a position.
  void take_keys_and_values(int64_t sample, int64_t group) {
    sample_ = sample;
    keys_ = rows_of(shape_.qkv_index(sample, group, shape_.heads), 0, shape_.s, width_, true, key_);
    values_ = rows_of(shape_.qkv_index(sample, group, shape_.heads + 1), 0, shape_.s, width_, false,
                      value_);
    key_columns_ =
        Gemm::pack_transposed(keys_.at, keys_.stride, shape_.d, width_, key_columns_room_);
  }

  // Returns the rows of positions [first, first + rows) in place, or in `copy` if they must be
  // rotated or filled up with zeros to `wanted` rows.
  Rows rows_of(int64_t head, int64_t first, int64_t rows, int64_t wanted, bool turn, T* copy) {
    const T* from = qkv_ + head + first * shape_.qkv_stride();
    if (rows == wanted && (!turn || rotated_half_ == 0)) return {from, shape_.qkv_stride()};
    for (int64_t i = 0; i < rows; ++i) {
      std::copy_n(from + i * shape_.qkv_stride(), shape_.d, copy + i * shape_.d);
      if (turn) rotated(copy + i * shape_.d, first + i, 1);
    }
    std::fill(copy + rows * shape_.d, copy + wanted * shape_.d, T(0));
    return {copy, shape_.d};
  }

  void rotated(T* head, int64_t position, float sign) {
    if (positions_) position = positions_[sample_ * shape_.s + position];
    if (rotated_half_ > 0)
      rotate(head, cos_.const_data_ptr<float>() + position * rotated_half_,
             sin_.const_data_ptr<float>() + position * rotated_half_, rotated_half_, sign);
  }

  // Computes the scores of the queries from `first` on with the keys from begin_ up to the last of
  // them, still without the factor scale_. No query sees a key before begin_. Returns the number of
  // queries.
  int64_t scores(int64_t sample, int64_t group, int64_t head, int64_t first) {
    begin_ = first_key(first) / kRows * kRows;
    const int64_t rows = std::min(kRows, shape_.s - first), width = first + kRows - begin_;
    queries_ = rows_of(shape_.qkv_index(sample, group, head), first, rows, rows, true, query_);
    Gemm::run(rows, width, shape_.d, queries_.at, queries_.stride,
              key_columns_.columns_from(begin_), scores_, width_, false);
    for (int64_t i = 0; i < rows; ++i) {
      float* row = scores_ + i * width_;
      if (bias_) {
        const float* bias =
            bias_ + ((group * shape_.heads + head) * shape_.s + first + i) * shape_.s;
        for (int64_t j = begin_; j <= first + i; ++j)
          row[j - begin_] = row[j - begin_] / root_d_ + bias[j];
      }
      std::fill(row, row + first_key(first + i) - begin_, -INFINITY);
      std::fill(row + first + i + 1 - begin_, row + width, -INFINITY);
    }
    return rows;
  }

  // Grows with the query.
  int64_t first_key(int64_t query) const {
    const int64_t of_window = extras_.window > 0 ? query + 1 - extras_.window : 0,
                  of_document = first_keys_ ? first_keys_[sample_ * shape_.s + query] : 0;
    return std::max<int64_t>({0, of_window, of_document});
  }

  // Returns dropout's factors for a query's weights, from key begin_ on; null without dropout.
  const float* factors(int64_t sample, int64_t group, int64_t head, int64_t query) {
    if (extras_.dropout == 0 || extras_.context.samples.empty()) return nullptr;
    const int64_t first =
        ((extras_.first_head + group * shape_.heads + head) * shape_.s + query) * shape_.s;
    const int64_t count = query + 1 - begin_;
    dropout_factors(factors_, count, first + begin_, extras_.dropout, extras_.context,
                    {extras_.layer, DropoutSite::Attention}, sample);
    std::fill(factors_ + count, factors_ + padded(count), 0.f);
    return factors_;
  }

  void query_gradient(int64_t sample, int64_t group, int64_t head, int64_t first, int64_t rows,
                      T* dqkv) {
    const int64_t width = first + kRows - begin_;
    Gemm::run(rows, shape_.d, width, dscores_, width, key_rows_.rows_from(begin_), block_, shape_.d,
              false);
    T* to = dqkv + shape_.qkv_index(sample, group, head) + first * shape_.qkv_stride();
    for (int64_t i = 0; i < rows; ++i) {
      scale_row(block_ + i * shape_.d, 1, shape_.d, to + i * shape_.qkv_stride());
      rotated(to + i * shape_.qkv_stride(), first + i, -1);
    }
  }

  // sums [d, width_] += x^T y, for x [rows, d] and y [kRows, width]. Rows of y past `rows` are
  // zeros.
  void add_transposed(const T* x, int64_t stride, int64_t rows, const T* y, int64_t width,
                      float* sums) {
    transpose(x, stride, rows, shape_.d, transposed_.data, kRows);
    for (int64_t i = 0; rows < kRows && i < shape_.d; ++i)
      std::fill(transposed_ + i * kRows + rows, transposed_ + (i + 1) * kRows, T(0));
    const auto rows_of_y = Gemm::pack(y, width, kRows, width, packed_);
    Gemm::run(shape_.d, width, kRows, transposed_, kRows, rows_of_y, sums, width_, true);
  }

  void write_gradient(float* sums, bool turn, T* to) {
    transpose(sums, width_, shape_.d, shape_.s, position_rows_.data, shape_.d);
    for (int64_t i = 0; i < shape_.s; ++i) {
      scale_row(position_rows_ + i * shape_.d, 1, shape_.d, to + i * shape_.qkv_stride());
      if (turn) rotated(to + i * shape_.qkv_stride(), i, -1);
    }
  }

  QkvShape shape_;
  const AttentionExtras& extras_;
  const T* qkv_;
  int64_t width_ = padded(shape_.s);
  float root_d_ = std::sqrt(static_cast<float>(shape_.d)), scale_ = extras_.bias ? 1 : 1 / root_d_;
  const float* bias_ = nullptr;
  const int64_t *positions_ = nullptr, *first_keys_ = nullptr;
  int64_t sample_ = 0, begin_ = 0;  // begin_: a multiple of kRows
  float inverse_sum_[kRows];
  int64_t rotated_half_ = 0;
  torch::Tensor cos_, sin_;
  Rows keys_{}, values_{}, queries_{};
  AlignedBuffer<T> key_{width_ * shape_.d}, value_{width_ * shape_.d}, query_{kRows * shape_.d},
      transposed_{kRows * shape_.d};
  AlignedBuffer<T> key_columns_room_{width_ * shape_.d}, rows_room_{width_ * shape_.d},
      value_columns_room_{width_ * shape_.d};
  Packed<T> key_columns_{}, key_rows_{};
  AlignedBuffer<T> weights_{kRows * width_}, dscores_{kRows * width_}, packed_{kRows * width_};
  AlignedBuffer<float> scores_{kRows * width_}, dweights_{kRows * width_}, factors_{width_},
      block_{kRows * shape_.d};
  AlignedBuffer<float> dkey_{shape_.d * width_}, dvalue_{shape_.d * width_},
      position_rows_{shape_.d * width_};
};

template <class T, class Work>
void for_each_group(const QkvShape& n, const AttentionExtras& extras, const torch::Tensor& qkv,
                    const Work& work) {
  at::parallel_for(0, n.b * n.groups, 1, [&](int64_t begin, int64_t end) {
    c10::NoGradGuard no_grad;
    HeadGroup<T> group(n, extras, qkv.const_data_ptr<T>());
    for (int64_t i = begin; i < end; ++i) work(group, i / n.groups, i % n.groups);
    BlockGemm<T>::release();
  });
}

struct ExtrasHolder : torch::CustomClassHolder {
  explicit ExtrasHolder(AttentionExtras e) : extras(std::move(e)) {}
  AttentionExtras extras;
};

// Converts bf16 to fp32, too, if the CPU has no units for it.
torch::Tensor in_computed_dtype(const torch::Tensor& x) {
  const bool units = BlockGemm<c10::BFloat16>::has_matrix_units();
  return units ? computed(x) : x.to(torch::kFloat);
}

struct Attention : torch::autograd::Function<Attention> {
  static torch::Tensor forward(torch::autograd::AutogradContext* ctx, const torch::Tensor& qkv,
                               const AttentionExtras& extras) {
    RECORD_FUNCTION("anymesh::attention", (std::array<c10::IValue, 1>{qkv}));
    const QkvShape n(qkv);
    const torch::Tensor x = in_computed_dtype(qkv);
    torch::Tensor out = torch::empty({n.b, n.s, n.out_stride()}, x.options());
    const torch::Tensor log_sums = torch::empty({n.b, n.groups * n.heads, n.s}, torch::kFloat);
    with_dtype_of(x, [&]<class T>(T) {
      for_each_group<T>(n, extras, x, [&](HeadGroup<T>& group, int64_t sample, int64_t g) {
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
    RECORD_FUNCTION("anymesh::attention_backward", (std::array<c10::IValue, 1>{grads[0]}));
    const auto saved = ctx->get_saved_variables();
    const torch::Tensor &qkv = saved[0], &log_sums = saved[1], x = in_computed_dtype(qkv),
                        dout = in_computed_dtype(grads[0].contiguous());
    const auto holder =
        c10::static_intrusive_pointer_cast<ExtrasHolder>(ctx->saved_data["extras"].toCapsule());
    torch::Tensor dqkv = torch::empty_like(x);
    const QkvShape n(qkv);
    with_dtype_of(x, [&]<class T>(T) {
      for_each_group<T>(n, holder->extras, x, [&](HeadGroup<T>& group, int64_t sample, int64_t g) {
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
