#include "framework/pipeline/pipeline_engine.h"

#include <ATen/Functions.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/autograd.h>

#include <deque>
#include <numeric>

#include "framework/pipeline/schedule.h"

namespace anymesh {
namespace {

constexpr int kPrevious = -1, kNext = 1;  // neighbouring stages

struct InFlight {
  torch::Tensor input, output;
};

// RECORD_USER_SCOPE for one micro-batch. The profiler finds its number where LibTorch keeps the
// sequence number of an operator, which a phase does not have.
#define RECORD_PHASE_OF(micro_batch, name)                       \
  RECORD_FUNCTION_WITH_SCOPE(at::RecordScope::USER_SCOPE, name,  \
                             c10::ArrayRef<const c10::IValue>{}, \
                             static_cast<int64_t>(micro_batch))

}  // namespace

std::vector<torch::Tensor> PipelineEngine::forward_backward(const std::vector<MicroBatch>& batches,
                                                            double gradient_scale) {
  const auto steps =
      one_f_one_b(grid_.coord.pp, grid_.topology.pp_size, static_cast<int>(batches.size()));
  std::deque<InFlight> in_flight;
  std::vector<torch::Tensor> losses;

  torch::Tensor input = receive(kPrevious), gradient;
  for (size_t i = 0; i < steps.size(); ++i) {
    const bool last = i + 1 == steps.size();
    const int micro_batch = steps[i].micro_batch;
    const bool forward_next = !last && steps[i + 1].op == Op::Forward;
    if (steps[i].op == Op::Forward) {
      torch::Tensor output;
      {
        RECORD_PHASE_OF(micro_batch, "forward");
        if (input.defined()) input.requires_grad_();
        MicroBatch batch = batches[static_cast<size_t>(micro_batch)];
        batch.loss_scale = gradient_scale;
        output = stage_.forward(input, batch);
      }
      if (grid_.is_last_stage()) losses.push_back(output.detach());
      in_flight.push_back({input, output});
      if (forward_next) {
        send(output, kNext);
        input = receive(kPrevious);
      } else {
        gradient = exchange(output, kNext, true);
      }
    } else {
      const InFlight done = in_flight.front();
      in_flight.pop_front();
      if (grid_.is_last_stage()) gradient = torch::full_like(done.output, gradient_scale);
      backward(micro_batch, done.output, gradient);
      const torch::Tensor dx = done.input.defined() ? done.input.grad() : torch::Tensor();
      if (forward_next) {
        input = exchange(dx, kPrevious, true);
      } else {
        send(dx, kPrevious);
        if (!last) gradient = receive(kNext);
      }
    }
  }
  return losses;
}

// The first stage has no backward if all of its parameters are frozen.
void PipelineEngine::backward(int micro_batch, const torch::Tensor& output,
                              const torch::Tensor& gradient) const {
  RECORD_PHASE_OF(micro_batch, "backward");
  if (output.requires_grad()) torch::autograd::backward({output}, {gradient});
  stage_.runner().after_backward();
}

std::vector<torch::Tensor> PipelineEngine::forward_only(const std::vector<MicroBatch>& batches) {
  c10::NoGradGuard no_grad;
  std::vector<torch::Tensor> outputs;
  for (const MicroBatch& batch : batches) {
    const torch::Tensor output = stage_.forward(receive(kPrevious), batch);
    send(output, kNext);
    if (grid_.is_last_stage()) outputs.push_back(output);
  }
  return outputs;
}

// Fuses send and receive, because two blocking sends in opposite directions would wait for each
// other.
torch::Tensor PipelineEngine::exchange(const std::optional<torch::Tensor>& out, int neighbour,
                                       bool receives) const {
  const int peer = grid_.coord.pp + neighbour;
  const bool exists = peer >= 0 && peer < grid_.topology.pp_size;
  const torch::Tensor in = exists && receives ? stage_.empty_hidden() : torch::Tensor();
  grid_.pp->exchange(exists && out ? out->detach().contiguous() : torch::Tensor(), peer, in, peer);
  return in;
}

// Sums in double. All losses are read at once, so that a device is waited for once.
double PipelineEngine::mean_of(const std::vector<torch::Tensor>& losses) const {
  torch::Tensor mean = torch::zeros({1}, torch::kDouble);
  if (!losses.empty()) {
    const torch::Tensor all = at::stack(losses).to(torch::kCPU, torch::kDouble);
    const double* loss = all.const_data_ptr<double>();
    mean.fill_(std::accumulate(loss, loss + all.numel(), 0.0) / static_cast<double>(all.numel()));
  }
  grid_.pp->broadcast(mean, grid_.topology.pp_size - 1);
  return mean.item<double>();
}

}  // namespace anymesh
