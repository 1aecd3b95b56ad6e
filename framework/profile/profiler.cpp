#include "framework/profile/profiler.h"

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>

#include <chrono>

namespace anymesh {

namespace {

void add_inputs(const c10::IValue& value, std::vector<Span::Input>& inputs) {
  if (value.isTensorList())
    for (const at::Tensor& t : value.toTensorVector()) add_inputs(t, inputs);
  if (!value.isTensor() || !value.toTensor().defined()) return;
  const at::Tensor& t = value.toTensor();
  inputs.push_back({std::string(t.dtype().name()), t.sizes().vec()});
}

}  // namespace

struct Profiler::Recording {
  using Clock = std::chrono::steady_clock;
  // LibTorch's callbacks are plain functions and find the recording here. On a GPU the backward's
  // operators call them on a thread of LibTorch's, where there is none.
  inline static thread_local Recording* of_thread = nullptr;

  const Clock::time_point start = Clock::now();
  std::vector<Span> spans;
  std::vector<size_t> open;  // indices of the spans that have not ended, outermost first

  int64_t now() const {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count();
  }
  void begin(const at::RecordFunction& function) {
    spans.push_back({.name = function.name(),
                     .phase = function.scope() == at::RecordScope::USER_SCOPE,
                     .depth = static_cast<int>(open.size())});
    if (spans.back().phase) spans.back().micro_batch = function.seqNr();
    for (const c10::IValue& value : function.inputs()) add_inputs(value, spans.back().inputs);
    open.push_back(spans.size() - 1);
    spans.back().begin = now();
  }
  void end() {
    if (open.empty()) return;  // began before the recording did
    Span& span = spans[open.back()];
    span.end = now();
    open.pop_back();
    for (size_t i = open.size(); i-- > 0;) {
      Span& around = spans[open[i]];
      if (around.phase != span.phase) continue;
      around.children += span.end - span.begin;
      break;
    }
  }
};

Profiler::Profiler() : recording_(std::make_unique<Recording>()) {
  Recording::of_thread = recording_.get();
  const auto begin =
      [](const at::RecordFunction& function) -> std::unique_ptr<at::ObserverContext> {
    if (Recording::of_thread) Recording::of_thread->begin(function);
    return nullptr;
  };
  const auto end = [](const at::RecordFunction&, at::ObserverContext*) {
    if (Recording::of_thread) Recording::of_thread->end();
  };
  callback_ = at::addThreadLocalCallback(
      at::RecordFunctionCallback(begin, end)
          .needsInputs(true)
          .scopes({at::RecordScope::FUNCTION, at::RecordScope::USER_SCOPE}));
}

Profiler::~Profiler() {
  if (callback_ != 0) stop();
}

std::vector<Span> Profiler::stop() {
  at::removeCallback(std::exchange(callback_, 0));
  Recording::of_thread = nullptr;
  std::erase_if(recording_->spans, [](const Span& span) { return span.end == 0; });
  return std::move(recording_->spans);
}

}  // namespace anymesh
