#include "framework/pipeline/pipeline_engine.h"

#include <ATen/record_function.h>
#include <torch/csrc/autograd/autograd.h>

#include <deque>

#include "framework/pipeline/schedule.h"

namespace anymesh {
namespace {

// The four ways in which data moves between neighbouring stages. At an end of the pipeline there is
// no neighbour, and the half of the move that would go there is an undefined tensor: nothing
// happens.
class Neighbours {
 public:
  Neighbours(const StageModule& stage, const ProcessGrid& grid) : stage_(stage), grid_(grid) {}

  torch::Tensor receive_forward() { return move({}, false, has_previous(), previous()); }
  torch::Tensor receive_backward() { return move({}, false, has_next(), next()); }
  void send_forward(const torch::Tensor& output) { move(output, has_next(), false, next()); }
  void send_backward(const torch::Tensor& dx) { move(dx, has_previous(), false, previous()); }
  // Fused, because two blocking sends in opposite directions would wait for each other.
  torch::Tensor send_forward_receive_backward(const torch::Tensor& output) {
    return move(output, has_next(), has_next(), next());
  }
  torch::Tensor send_backward_receive_forward(const torch::Tensor& dx) {
    return move(dx, has_previous(), has_previous(), previous());
  }

 private:
  bool has_previous() const { return !grid_.is_first_stage(); }
  bool has_next() const { return !grid_.is_last_stage(); }
  int previous() const { return grid_.coord.pp - 1; }
  int next() const { return grid_.coord.pp + 1; }

  torch::Tensor move(const torch::Tensor& out, bool send, bool receive, int peer) {
    const torch::Tensor in = receive ? stage_.empty_hidden() : torch::Tensor();
    grid_.pp->exchange(send ? out.detach().contiguous() : torch::Tensor(), peer, in, peer);
    return in;
  }

  const StageModule& stage_;
  const ProcessGrid& grid_;
};

struct InFlight {
  torch::Tensor input, output;
};

}  // namespace

double PipelineEngine::forward_backward(const std::vector<MicroBatch>& batches,
                                        double gradient_scale) {
  const auto steps =
      one_f_one_b(grid_.coord.pp, grid_.topology.pp_size, static_cast<int>(batches.size()));
  Neighbours neighbours(stage_, grid_);
  std::deque<InFlight> in_flight;
  double loss_sum = 0;

  torch::Tensor input = neighbours.receive_forward(), gradient;
  for (size_t i = 0; i < steps.size(); ++i) {
    const bool last = i + 1 == steps.size();
    const bool forward_next = !last && steps[i + 1].op == Op::Forward;
    if (steps[i].op == Op::Forward) {
      const torch::Tensor output =
          forward(input, batches[static_cast<size_t>(steps[i].micro_batch)]);
      if (grid_.is_last_stage()) loss_sum += output.item<double>();
      in_flight.push_back({input, output});
      if (forward_next) {
        neighbours.send_forward(output);
        input = neighbours.receive_forward();
      } else {
        gradient = neighbours.send_forward_receive_backward(output);
      }
    } else {
      const InFlight done = in_flight.front();
      in_flight.pop_front();
      if (grid_.is_last_stage()) gradient = torch::full_like(done.output, gradient_scale);
      backward(done.output, gradient);
      const torch::Tensor dx = done.input.defined() ? done.input.grad() : torch::Tensor();
      if (forward_next) {
        input = neighbours.send_backward_receive_forward(dx);
      } else {
        neighbours.send_backward(dx);
        if (!last) gradient = neighbours.receive_backward();
      }
    }
  }
  return mean_on_all_stages(loss_sum, batches.size());
}

torch::Tensor PipelineEngine::forward(const torch::Tensor& input, const MicroBatch& batch) const {
  RECORD_USER_SCOPE("forward");
  if (input.defined()) input.requires_grad_();
  return stage_.forward(input, batch);
}

// The first stage has no backward if all of its parameters are frozen.
void PipelineEngine::backward(const torch::Tensor& output, const torch::Tensor& gradient) const {
  RECORD_USER_SCOPE("backward");
  if (output.requires_grad()) torch::autograd::backward({output}, {gradient});
  stage_.runner().after_backward();
}

double PipelineEngine::forward_only(const std::vector<MicroBatch>& batches) {
  c10::NoGradGuard no_grad;
  Neighbours neighbours(stage_, grid_);
  double loss_sum = 0;
  for (const MicroBatch& batch : batches) {
    const torch::Tensor output = stage_.forward(neighbours.receive_forward(), batch);
    neighbours.send_forward(output);
    if (grid_.is_last_stage()) loss_sum += output.item<double>();
  }
  return mean_on_all_stages(loss_sum, batches.size());
}

double PipelineEngine::mean_on_all_stages(double sum, size_t count) const {
  torch::Tensor mean = torch::full({1}, sum / static_cast<double>(count), torch::kDouble);
  grid_.pp->broadcast(mean, grid_.topology.pp_size - 1);
  return mean.item<double>();
}

}  // namespace anymesh
