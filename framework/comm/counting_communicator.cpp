#include "framework/comm/counting_communicator.h"

#include <ATen/Functions.h>
#include <ATen/record_function.h>

#include <cinttypes>
#include <type_traits>
#include <vector>

#include "framework/util/format.h"

namespace anymesh {
namespace {

class TimedPending final : public Pending {
 public:
  TimedPending(std::unique_ptr<Pending> pending, std::string name)
      : pending_(std::move(pending)), name_(std::move(name)) {}
  void wait() override {
    RECORD_USER_SCOPE(name_);
    pending_->wait();
  }

 private:
  std::unique_ptr<Pending> pending_;
  std::string name_;
};

class CountingCommunicator final : public Communicator {
 public:
  CountingCommunicator(CommPtr group, const std::string& name, std::array<Traffic, kVerbs>& traffic)
      : group_(std::move(group)), traffic_(traffic) {
    for (size_t verb = 0; verb < kVerbs; ++verb) phases_[verb] = name + " " + kVerbNames[verb];
  }

  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  CommPtr split(int color, int key, const std::string& name) const override {
    return group_->split(color, key, name);
  }
  CommPtr split_by(const std::function<int(int)>& color_of,
                   const std::string& name) const override {
    return group_->split_by(color_of, name);
  }
  bool sums_in_fp32() const override { return group_->sums_in_fp32(); }
  void run_beside() override { group_->run_beside(); }
  void connect_neighbours() override { group_->connect_neighbours(); }
  void barrier() override { group_->barrier(); }
  std::vector<int> roll_call(std::chrono::milliseconds patience) override {
    return group_->roll_call(patience);
  }

  void all_reduce(torch::Tensor t, ReduceOp op) override {
    count(kAllReduce, t, [&] { group_->all_reduce(t, op); });
  }
  std::unique_ptr<Pending> start_all_reduce(torch::Tensor t) override {
    return timed(kAllReduce, count(kAllReduce, t, [&] { return group_->start_all_reduce(t); }));
  }
  std::unique_ptr<Pending> start_all_gather(torch::Tensor out, torch::Tensor in) override {
    return timed(kAllGather,
                 count(kAllGather, out, [&] { return group_->start_all_gather(out, in); }));
  }
  void reduce_scatter(torch::Tensor out, torch::Tensor in,
                      const std::vector<int64_t>& counts) override {
    count(kReduceScatter, in, [&] { group_->reduce_scatter(out, in, counts); });
  }
  std::unique_ptr<Pending> start_reduce_scatter(torch::Tensor out, torch::Tensor in,
                                                const std::vector<int64_t>& counts) override {
    return timed(kReduceScatter, count(kReduceScatter, in, [&] {
                   return group_->start_reduce_scatter(out, in, counts);
                 }));
  }
  void all_to_all(torch::Tensor out, torch::Tensor in, const std::vector<int64_t>& receive_counts,
                  const std::vector<int64_t>& send_counts) override {
    count(kAllToAll, in, [&] { group_->all_to_all(out, in, receive_counts, send_counts); });
  }
  void broadcast(torch::Tensor t, int root) override {
    count(kBroadcast, t, [&] { group_->broadcast(t, root); });
  }
  std::unique_ptr<Pending> start_exchange(const std::vector<Message>& sends,
                                          const std::vector<Message>& receives) override {
    std::vector<c10::IValue> payloads;
    for (const Message& sent : sends) {
      count(kExchange, sent.tensor);
      payloads.emplace_back(sent.tensor);
    }
    RECORD_USER_SCOPE_WITH_INPUTS(phases_[kExchange], payloads);
    return timed(kExchange, group_->start_exchange(sends, receives));
  }

 private:
  void count(Verb verb, const torch::Tensor& payload) {
    ++traffic_[verb].calls;
    traffic_[verb].bytes += static_cast<int64_t>(payload.nbytes());
  }
  // Makes a call that moves `payload`, and counts it.
  template <class Call>
  std::invoke_result_t<Call> count(Verb verb, const torch::Tensor& payload, const Call& call) {
    count(verb, payload);
    RECORD_USER_SCOPE_WITH_INPUTS(phases_[verb], (std::array<c10::IValue, 1>{payload}));
    return call();
  }

  std::unique_ptr<Pending> timed(Verb verb, std::unique_ptr<Pending> pending) const {
    if (!pending) return nullptr;
    return std::make_unique<TimedPending>(std::move(pending), phases_[verb] + " wait");
  }

  CommPtr group_;
  std::array<std::string, kVerbs> phases_;
  std::array<Traffic, kVerbs>& traffic_;
};

}  // namespace

CommPtr counted(CommPtr group, const std::string& name, CommCounts* counts) {
  if (!counts) return group;
  std::array<Traffic, kVerbs>& traffic = counts->groups[name];
  if (group->size() == 1) return group;
  return c10::make_intrusive<CountingCommunicator>(std::move(group), name, traffic);
}

std::vector<TrafficRow> traffic_rows(const CommCounts& counts, Communicator& world) {
  std::vector<int64_t> values;  // calls and bytes by group and verb; same length on every rank
  for (const auto& [name, traffic] : counts.groups) {
    for (const auto& [calls, bytes] : traffic) values.insert(values.end(), {calls, bytes});
  }
  const torch::Tensor most = torch::tensor(values, torch::kLong);
  world.all_reduce(most, ReduceOp::Max);
  const int64_t* maximum = most.const_data_ptr<int64_t>();
  std::vector<TrafficRow> rows;
  for (const auto& [name, traffic] : counts.groups)
    for (size_t verb = 0; verb < kVerbs; ++verb, maximum += 2)
      if (maximum[0] != 0)
        rows.push_back({name, kVerbNames[verb], traffic[verb], {maximum[0], maximum[1]}});
  return rows;
}

std::string table_of(const std::vector<TrafficRow>& rows) {
  if (rows.empty()) return "no communication in the last step";
  std::string table =
      "communication in the last step, calls and bytes of payload\n"
      "group      verb             rank 0          bytes  busiest rank          bytes";
  for (const auto& [group, verb, mine, most] : rows)
    table +=
        string_printf("\n%-10s %-14s %8" PRId64 " %14" PRId64 "  %12" PRId64 " %14" PRId64,
                      group.c_str(), verb.c_str(), mine.calls, mine.bytes, most.calls, most.bytes);
  return table;
}

}  // namespace anymesh
