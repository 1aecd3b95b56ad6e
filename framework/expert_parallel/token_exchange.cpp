#include "framework/expert_parallel/token_exchange.h"

#include <ATen/Functions.h>
#include <torch/csrc/autograd/custom_function.h>

#include <numeric>

#include "framework/kernels/expert_rows.h"

namespace anymesh {

using torch::autograd::AutogradContext;
using torch::autograd::tensor_list;

// A rank sends its rows by expert, hence by rank. They arrive by rank and then by expert, and are
// sorted by expert.
struct TokenExchange::Plan : torch::CustomClassHolder {
  CommPtr ep;
  torch::Tensor order;                  // [t K]: the choice in each row sent
  torch::Tensor places;                 // [t, K]: the row of each choice
  torch::Tensor sorted, arrived;        // [r]: the arrived row at each place by expert; and back
  std::vector<int64_t> sent, received;  // rows, by rank
  RowGroups groups;                     // rows, by expert

  int64_t chosen() const { return places.size(1); }

  torch::Tensor exchanged(const torch::Tensor& rows, const std::vector<int64_t>& from,
                          const std::vector<int64_t>& to) const {
    const int64_t h = rows.size(1);
    std::vector<int64_t> send = from, receive = to;
    for (int64_t& n : send) n *= h;
    for (int64_t& n : receive) n *= h;
    torch::Tensor out =
        at::empty({std::accumulate(to.begin(), to.end(), int64_t{0}), h}, rows.options());
    ep->all_to_all(out, rows, receive, send);
    return out;
  }
  torch::Tensor to_experts(const torch::Tensor& rows) const {
    if (!ep) return rows;
    return exchanged(rows, sent, received).index_select(0, sorted);
  }
  torch::Tensor to_tokens(const torch::Tensor& rows) const {
    if (!ep) return rows;
    return exchanged(rows.index_select(0, arrived), received, sent);
  }
};

namespace {

using PlanPtr = c10::intrusive_ptr<TokenExchange::Plan>;

PlanPtr plan_of(AutogradContext* ctx) {
  return c10::static_intrusive_pointer_cast<TokenExchange::Plan>(
      ctx->saved_data["plan"].toCapsule());
}

struct Send : torch::autograd::Function<Send> {
  static torch::Tensor forward(AutogradContext* ctx, const torch::Tensor& x, const PlanPtr& plan) {
    ctx->saved_data["plan"] = c10::IValue::make_capsule(plan);
    return plan->to_experts(rows_of_choices(x, plan->order, plan->chosen()));
  }
  static tensor_list backward(AutogradContext* ctx, tensor_list grads) {
    const PlanPtr plan = plan_of(ctx);
    return {sum_of_choices(plan->to_tokens(grads[0].contiguous()), plan->places, {}), {}};
  }
};

struct BringBack : torch::autograd::Function<BringBack> {
  static torch::Tensor forward(AutogradContext* ctx, const torch::Tensor& rows,
                               const torch::Tensor& weights, const PlanPtr& plan) {
    ctx->saved_data["plan"] = c10::IValue::make_capsule(plan);
    const torch::Tensor back = plan->to_tokens(rows);
    ctx->save_for_backward({back, weights});
    return sum_of_choices(back, plan->places, weights);
  }
  static tensor_list backward(AutogradContext* ctx, tensor_list grads) {
    const PlanPtr plan = plan_of(ctx);
    const auto saved = ctx->get_saved_variables();
    const torch::Tensor dy = grads[0].contiguous();
    const auto [rows, weights] = gradients_of_sum(dy, saved[0], plan->places, saved[1]);
    return {plan->to_experts(rows), weights, {}};
  }
};

// Returns the places of the least values first, and of equal ones in their order.
torch::Tensor sorted_places(const torch::Tensor& values) {
  return at::argsort(values, /*stable=*/true, /*dim=*/0, /*descending=*/false);
}

torch::Tensor inverse_of(const torch::Tensor& order) {
  return at::empty_like(order).scatter_(0, order, at::arange(order.numel(), order.options()));
}

}  // namespace

TokenExchange::TokenExchange(const torch::Tensor& experts, int64_t count, const ExpertParallel& ep)
    : plan_(c10::make_intrusive<Plan>()) {
  const torch::Tensor choices = experts.flatten();
  plan_->order = sorted_places(choices);
  plan_->places = inverse_of(plan_->order).view_as(experts);
  const int64_t ranks = ep.size(), own = count / ranks;
  torch::Tensor rows = at::zeros({2, count}, choices.options());  // [to, from] each rank, by expert
  const torch::Tensor mine = rows[0], theirs = rows[1];           // [ranks, own], flat
  mine.index_add_(0, choices, at::ones_like(choices));
  if (ranks > 1) {
    plan_->ep = ep.group;
    const std::vector<int64_t> each(static_cast<size_t>(ranks), own);
    ep.group->all_to_all(theirs, mine, each, each);
  }
  const torch::Tensor here = rows[ranks > 1 ? 1 : 0].view({ranks, own}).sum(0);
  plan_->groups.ends = here.cumsum(0).to(torch::kInt);
  rows = rows.cpu();  // the one wait
  const auto sums = [&](int64_t which, int64_t dim) {
    const torch::Tensor sum = rows[which].view({ranks, own}).sum(dim);
    return std::vector<int64_t>(sum.const_data_ptr<int64_t>(),
                                sum.const_data_ptr<int64_t>() + sum.numel());
  };
  plan_->groups.counts = sums(ranks > 1 ? 1 : 0, 0);
  if (ranks == 1) return;
  plan_->sent = sums(0, 1);
  plan_->received = sums(1, 1);
  const int64_t arriving = rows[1].sum().item<int64_t>();
  const torch::Tensor expert_of =  // each arrived row's
      at::arange(own, choices.options())
          .repeat({ranks})
          .repeat_interleave(theirs, /*dim=*/0, /*output_size=*/arriving);
  plan_->sorted = sorted_places(expert_of);
  plan_->arrived = inverse_of(plan_->sorted);
}

TokenExchange::~TokenExchange() = default;

torch::Tensor TokenExchange::send(const torch::Tensor& x) const {
  return Send::apply(x.contiguous(), plan_);
}

torch::Tensor TokenExchange::bring_back(const torch::Tensor& rows,
                                        const torch::Tensor& weights) const {
  return BringBack::apply(rows, weights, plan_);
}

const RowGroups& TokenExchange::groups() const { return plan_->groups; }

}  // namespace anymesh
