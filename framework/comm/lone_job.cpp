#include "framework/comm/lone_job.h"

#include <ATen/Functions.h>

#include <algorithm>

#include "framework/comm/parts.h"

namespace anymesh {
namespace {

struct Done final : Pending {
  void wait() override {}
};

class LoneCommunicator final : public Communicator {
 public:
  // `place`: the rank among those of the group this one was split from; `rank`: what it says.
  LoneCommunicator(int size, int rank, int place) : size_(size), rank_(rank), place_(place) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  CommPtr split(int /*color*/, int /*key*/, const std::string& /*name*/) const override {
    return c10::make_intrusive<LoneCommunicator>(1, 0, 0);
  }
  CommPtr split_by(const std::function<int(int)>& color_of,
                   const std::string& /*name*/) const override {
    const int color = color_of(place_);
    int size = 0, rank = 0;
    for (int other = 0; other < size_; ++other) {
      if (other == place_) rank = size;
      size += color_of(other) == color;
    }
    return c10::make_intrusive<LoneCommunicator>(size, rank, rank);
  }

  void all_reduce(torch::Tensor /*t*/, ReduceOp /*op*/) override {}
  std::unique_ptr<Pending> start_all_gather(torch::Tensor out, torch::Tensor in) override {
    c10::NoGradGuard no_grad;
    const torch::Tensor parts = out.view({size_, in.numel()});
    if (parts[rank_].data_ptr() == in.data_ptr()) in = in.clone();  // it is one of the parts
    parts.copy_(in.view({1, -1}).expand({size_, in.numel()}));
    return std::make_unique<Done>();
  }
  void reduce_scatter(torch::Tensor out, torch::Tensor in,
                      const std::vector<int64_t>& counts) override {
    c10::NoGradGuard no_grad;
    const int64_t begin = starts_of(counts)[static_cast<size_t>(rank_)];
    const torch::Tensor mine = in.view(-1).narrow(0, begin, out.numel());
    if (mine.data_ptr() != out.data_ptr()) out.view(-1).copy_(mine);
  }
  void all_to_all(torch::Tensor out, torch::Tensor in, const std::vector<int64_t>& receive_counts,
                  const std::vector<int64_t>& send_counts) override {
    c10::NoGradGuard no_grad;
    const auto self = static_cast<size_t>(rank_);
    const torch::Tensor mine =
        in.view(-1).narrow(0, starts_of(send_counts)[self], send_counts[self]);
    int64_t begin = 0;
    out.zero_();
    for (const int64_t count : receive_counts) {
      const int64_t some = std::min(count, mine.numel());
      out.view(-1).narrow(0, begin, some).copy_(mine.narrow(0, 0, some));
      begin += count;
    }
  }
  void broadcast(torch::Tensor /*t*/, int /*root*/) override {}
  std::unique_ptr<Pending> start_exchange(const std::vector<Message>& /*sends*/,
                                          const std::vector<Message>& receives) override {
    for (const auto& [tensor, from] : receives) tensor.zero_();
    return std::make_unique<Done>();
  }
  void barrier() override {}
  std::vector<int> roll_call(std::chrono::milliseconds /*patience*/) override { return {}; }

 private:
  int size_, rank_, place_;
};

}  // namespace

CommPtr LoneJob::world(Patience /*patience*/) const {
  return c10::make_intrusive<LoneCommunicator>(ranks_, 0, rank_);
}

CommPtr LoneJob::local() const { return c10::make_intrusive<LoneCommunicator>(1, 0, 0); }

}  // namespace anymesh
