#include "framework/profile/profiler.h"

#include <ATen/Functions.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <thread>

#include "framework/profile/kernels.h"

namespace anymesh {
namespace {

void pause() { std::this_thread::sleep_for(std::chrono::milliseconds(2)); }

const Span& span_of(const std::vector<Span>& spans, const std::string& name) {
  return *std::find_if(spans.begin(), spans.end(), [&](const Span& s) { return s.name == name; });
}

TEST(Profiler, RecordsPhasesWithWhatIsInsideThem) {
  Profiler profiler;
  {
    RECORD_USER_SCOPE("outer");
    pause();
    {
      RECORD_USER_SCOPE("inner");
      pause();
    }
  }
  const std::vector<Span> spans = profiler.stop();
  ASSERT_EQ(spans.size(), 2);
  const Span &outer = spans[0], &inner = spans[1];
  EXPECT_EQ(outer.name, "outer");
  EXPECT_EQ(inner.name, "inner");
  EXPECT_EQ(outer.depth, 0);
  EXPECT_EQ(inner.depth, 1);
  EXPECT_TRUE(outer.phase);
  EXPECT_EQ(outer.micro_batch, -1);
  EXPECT_LE(outer.begin, inner.begin);
  EXPECT_LE(inner.end, outer.end);
  EXPECT_GE(inner.end - inner.begin, 2000000);
  EXPECT_EQ(outer.children, inner.end - inner.begin);
}

TEST(KernelRecorder, HasTheDevicesWorkInOrder) {
  KernelRecorder recorder(torch::kCPU);
  const torch::Tensor x = at::ones({64, 64});
  at::mm(x, x).exp_();
  const std::vector<Span> spans = recorder.stop();
  const Span &product = span_of(spans, "aten::mm"), &exponential = span_of(spans, "aten::exp_");
  EXPECT_TRUE(product.kernel);
  EXPECT_GE(product.begin, 0);
  EXPECT_LT(product.begin, product.end);
  EXPECT_LE(product.end, exponential.begin);
  EXPECT_LT(exponential.end, int64_t{60} * 1'000'000'000) << "not relative to the beginning";
  KernelRecorder left_open(torch::kCPU);  // ends by itself
}

TEST(Profiler, KeepsTheNumberOfAMicroBatch) {
  Profiler profiler;
  {
    RECORD_FUNCTION_WITH_SCOPE(at::RecordScope::USER_SCOPE, "forward",
                               c10::ArrayRef<const c10::IValue>{}, int64_t{7});
  }
  const std::vector<Span> spans = profiler.stop();
  EXPECT_EQ(spans.at(0).name, "forward");
  EXPECT_EQ(spans.at(0).micro_batch, 7);
}

TEST(Profiler, TellsOperatorsFromPhases) {
  const torch::Tensor x = torch::ones({4, 4});
  Profiler profiler;
  {
    RECORD_USER_SCOPE("work");
    at::matmul(x, x);
  }
  const std::vector<Span> spans = profiler.stop();
  const Span &work = span_of(spans, "work"), &matmul = span_of(spans, "aten::matmul"),
             &mm = span_of(spans, "aten::mm");
  EXPECT_FALSE(matmul.phase);
  EXPECT_EQ(work.children, 0);  // an operator is no phase
  EXPECT_EQ(matmul.children, mm.end - mm.begin);
  EXPECT_EQ(mm.depth, 2);
}

TEST(Profiler, KeepsTheShapesAndTypesOfTensors) {
  const torch::Tensor x = torch::ones({2, 3}), y = torch::ones({3, 4});
  Profiler profiler;
  at::mm(x, y);
  at::cat({x, x.to(torch::kBFloat16)});
  {
    RECORD_USER_SCOPE_WITH_INPUTS("tp all_reduce",
                                  (std::array<c10::IValue, 2>{x, torch::Tensor()}));
  }
  const std::vector<Span> spans = profiler.stop();
  const auto &mm = span_of(spans, "aten::mm").inputs, &cat = span_of(spans, "aten::cat").inputs,
             &verb = span_of(spans, "tp all_reduce").inputs;
  ASSERT_EQ(mm.size(), 2);
  EXPECT_EQ(mm[0].sizes, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(mm[1].sizes, (std::vector<int64_t>{3, 4}));
  ASSERT_EQ(cat.size(), 2) << "the tensors of a list";
  EXPECT_EQ(cat[0].dtype, "float");
  EXPECT_EQ(cat[1].dtype, "c10::BFloat16");
  ASSERT_EQ(verb.size(), 1) << "one is not defined";
  EXPECT_EQ(verb[0].sizes, (std::vector<int64_t>{2, 3}));
}

TEST(Profiler, RecordsOnlyBetweenStartAndStop) {
  std::vector<Span> spans;
  {
    RECORD_USER_SCOPE("around");
    Profiler profiler;
    spans = profiler.stop();
    at::ones({2});
  }
  EXPECT_TRUE(spans.empty());
}

}  // namespace
}  // namespace anymesh
