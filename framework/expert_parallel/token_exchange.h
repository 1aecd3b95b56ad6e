#pragma once

#include <vector>

#include "framework/comm/expert_parallel.h"
#include "framework/kernels/grouped_linear.h"

namespace anymesh {

// The way of a micro-batch's tokens to the experts that they chose, and back:
//
//   const TokenExchange exchange(experts, /*count=*/E, ep);  // experts [t, K]
//   torch::Tensor rows = exchange.send(x);                   // [t, h] -> [r, h]
//   ... an expert of this rank works on its rows: each has one of exchange.groups() ...
//   torch::Tensor y = exchange.bring_back(rows, weights);    // [r, h], [t, K] -> [t, h]
//
//   y = sum over k of weights_k rows_k, in the order of k
//
// An expert's rows are ordered by rank, then by token. Each function's backward is one exchange in
// the other direction. All calls, and their backwards, are collective over ep. The constructor
// waits for a device once, because the host must know how many rows go where.
class TokenExchange {
 public:
  TokenExchange(const torch::Tensor& experts, int64_t count, const ExpertParallel& ep);
  ~TokenExchange();
  TokenExchange(const TokenExchange&) = delete;
  TokenExchange& operator=(const TokenExchange&) = delete;

  torch::Tensor send(const torch::Tensor& x) const;
  torch::Tensor bring_back(const torch::Tensor& rows, const torch::Tensor& weights) const;
  const RowGroups& groups() const;  // the rows of each expert of this rank

  struct Plan;

 private:
  c10::intrusive_ptr<Plan> plan_;
};

}  // namespace anymesh
