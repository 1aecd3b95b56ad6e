#include "framework/pipeline/pipeline_engine.h"

#include <ATen/Functions.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/autograd.h>

#include <numeric>
#include <optional>

#include "framework/util/errors.h"

namespace anymesh {
namespace {

// RECORD_USER_SCOPE for one micro-batch. The profiler finds its number where LibTorch keeps the
// sequence number of an operator, which a phase does not have.
#define RECORD_PHASE_OF(micro_batch, name)                       \
  RECORD_FUNCTION_WITH_SCOPE(at::RecordScope::USER_SCOPE, name,  \
                             c10::ArrayRef<const c10::IValue>{}, \
                             static_cast<int64_t>(micro_batch))

// The messages of a stage that are under way. Those of a slot are started together.
class Mail {
 public:
  Mail(Communicator& pp, const StageModule& stage) : pp_(pp), stage_(stage) {}

  void start(const Slot& slot, const torch::Tensor& result) {
    UnderWay messages;
    if (slot.to) messages.sends.push_back({result.detach().contiguous(), *slot.to});
    for (const auto& [from, needed_by] : slot.arrivals) {
      messages.receives.push_back({stage_.empty_hidden(), from});
      inputs_[needed_by] = {messages.receives.back().tensor, ended_ + under_way_.size()};
    }
    if (messages.sends.empty() && messages.receives.empty()) return;
    messages.pending = pp_.start_exchange(messages.sends, messages.receives);
    under_way_.push_back(std::move(messages));
    if (under_way_.size() > kMost) end_oldest();
  }
  // Returns a step's input; undefined if it needs none.
  torch::Tensor take(const Step& step) {
    const auto found = inputs_.find(step);
    if (found == inputs_.end()) return {};
    const auto [input, number] = found->second;
    inputs_.erase(found);
    while (ended_ <= number) end_oldest();
    return input;
  }
  void end_all() {
    while (!under_way_.empty()) end_oldest();
  }

 private:
  // A stage may be so many slots ahead of one that it sends to. Their tensors are kept.
  static constexpr size_t kMost = 2;
  struct UnderWay {
    std::vector<Message> sends, receives;
    std::unique_ptr<Pending> pending;  // goes first
  };
  void end_oldest() {
    under_way_.front().pending->wait();
    under_way_.pop_front();
    ++ended_;
  }

  Communicator& pp_;
  const StageModule& stage_;
  std::map<Step, std::pair<torch::Tensor, size_t>> inputs_;  // each in which exchange
  std::deque<UnderWay> under_way_;
  size_t ended_ = 0;  // exchanges before those
};

struct InFlight {
  torch::Tensor input, output;
};

}  // namespace

PipelineEngine::PipelineEngine(StageModule& stage, const ProcessGrid& grid, bool splits_backward)
    : stage_(stage), grid_(grid), splits_backward_(splits_backward) {
  if (stage.chunks() != grid.topology.chunks)
    throw UserError(
        "--num-layers-per-virtual-pipeline-stage: a stage of this model is one run of layers, "
        "which is not cut; leave it out");
  grid.pp->connect_neighbours();
}

std::vector<torch::Tensor> PipelineEngine::forward_backward(const std::vector<MicroBatch>& batches,
                                                            double gradient_scale) {
  return run(slots(/*trains=*/true, batches.size()), batches, gradient_scale);
}

std::vector<torch::Tensor> PipelineEngine::forward_only(const std::vector<MicroBatch>& batches) {
  const c10::NoGradGuard no_grad;
  return run(slots(/*trains=*/false, batches.size()), batches, 0);
}

const std::vector<Slot>& PipelineEngine::slots(bool trains, size_t micro_batches) {
  const auto [found, is_new] = slots_.try_emplace({trains, micro_batches});
  if (!is_new) return found->second;
  const PipelineShape shape{grid_.topology.pp_size, static_cast<int>(micro_batches),
                            grid_.topology.chunks};
  std::vector<std::vector<Step>> steps;
  for (int stage = 0; stage < shape.stages; ++stage)
    steps.push_back(!trains            ? forwards(shape)
                    : splits_backward_ ? zero_bubble(stage, shape)
                                       : one_f_one_b(stage, shape));
  return found->second = slots_of(grid_.coord.pp, steps, shape.chunks);
}

std::vector<torch::Tensor> PipelineEngine::run(const std::vector<Slot>& slots,
                                               const std::vector<MicroBatch>& batches,
                                               double gradient_scale) {
  const int chunks = grid_.topology.chunks;
  std::vector<std::deque<InFlight>> in_flight(static_cast<size_t>(chunks));
  std::vector<torch::Tensor> outputs;  // of the model's last part
  Mail mail(*grid_.pp, stage_);

  const auto is_last = [&](const Step& step) {
    return static_cast<size_t>(step.micro_batch) + 1 == batches.size();
  };
  const auto forward = [&](const Step& step, const torch::Tensor& input) {
    RECORD_PHASE_OF(step.micro_batch, "forward");
    const bool trains = at::GradMode::is_enabled();
    if (trains && input.defined()) input.requires_grad_();
    MicroBatch batch = batches[static_cast<size_t>(step.micro_batch)];
    batch.loss_scale = gradient_scale;
    batch.chunk = step.chunk;
    torch::Tensor output = stage_.forward(input, batch);
    if (grid_.is_last_stage() && step.chunk == chunks - 1) outputs.push_back(output.detach());
    if (trains) in_flight[static_cast<size_t>(step.chunk)].push_back({input, output});
    return output;
  };
  // The first stage has no backward if all of its parameters are frozen.
  const auto backward = [&](const Step& step, torch::Tensor gradient) {
    RECORD_PHASE_OF(step.micro_batch, "backward");
    stage_.runner().begin_backward(splits_backward_, is_last(step));
    std::deque<InFlight>& oldest = in_flight[static_cast<size_t>(step.chunk)];
    const InFlight done = std::move(oldest.front());
    oldest.pop_front();
    if (!gradient.defined()) gradient = torch::full_like(done.output, gradient_scale);
    if (done.output.requires_grad()) torch::autograd::backward({done.output}, {gradient});
    stage_.runner().end_backward();
    return done.input.defined() ? done.input.grad() : torch::Tensor();
  };
  const auto weights = [&](const Step& step) {
    RECORD_PHASE_OF(step.micro_batch, "weights");
    stage_.runner().make_gradients(is_last(step));
    return torch::Tensor();
  };
  const auto run_step = [&](const Step& step) {
    const torch::Tensor input = mail.take(step);
    switch (step.op) {
      case Op::Forward:
        return forward(step, input);
      case Op::Backward:
        return backward(step, input);
      case Op::Weights:
        return weights(step);
    }
    return torch::Tensor();
  };

  for (const Slot& slot : slots)
    mail.start(slot, slot.step ? run_step(*slot.step) : torch::Tensor());
  mail.end_all();
  return outputs;
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
