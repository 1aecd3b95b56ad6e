// Lets ranks that are threads of one process meet, and work on each other's tensors in place.
// thread_job.cpp builds collectives on it.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "framework/comm/job.h"

namespace anymesh {

// All ranks of a job: one lock for their shared state, and a bell for each rank to sleep by.
struct ThreadRanks {
  explicit ThreadRanks(int count) : bells(static_cast<size_t>(count)) {}
  // Ends the job: from now on a rank that has to wait for another, or begins a verb, gets JobEnded.
  void end(std::exception_ptr error);

  std::mutex mutex;
  std::vector<std::condition_variable> bells;
  std::exception_ptr first_error;
};

// The addresses of a member's tensors.
struct Place {
  std::byte* out = nullptr;
  const std::byte* in = nullptr;
};
using Places = std::vector<Place>;  // one per member

// A verb's work, in one part for each member. It may begin once all members are there, and any
// member may do any part.
using Work = std::function<void(const Places& places, size_t part)>;

// A verb in progress.
struct Meeting {
  explicit Meeting(size_t size) : places(size), here(size), missing(size) {}
  bool has_parts() const { return missing == 0 && taken < places.size(); }
  bool is_over() const { return missing == 0 && done == places.size(); }

  Places places;
  std::vector<bool> here;
  size_t missing;                          // members
  size_t taken = 0, done = 0;              // parts
  std::optional<std::vector<int>> absent;  // the answer of a roll call that some members missed
};

// One half of a message: the bytes that a member sends, or the place where it receives.
struct Half {
  int partner;  // the other member
  bool sends;
  std::byte* data;
  size_t bytes, others_bytes = 0;
  bool has_partner = false, done = false;
};

// The halves from one member to another that have no partner yet, the oldest first.
struct Line {
  std::deque<Half*> sends, receives;
};

// The state that a group's members share, guarded by the lock of all ranks.
struct ThreadGroup {
  ThreadGroup(std::string its_name, std::vector<int> ranks)
      : name(std::move(its_name)), members(std::move(ranks)), next(members.size()) {}

  const std::string name;
  const std::vector<int> members;             // ranks of the world
  std::vector<size_t> next;                   // by member: the number of its next meeting
  std::deque<std::shared_ptr<Meeting>> open;  // meetings that wait for members
  size_t first = 0;                           // the number of the first open meeting
  std::map<std::pair<int, int>, Line> lines;  // by sender and receiver
};

// A rank's place in a group. Its verbs sleep while they wait, and print one warning when they have
// waited for the time of `patience`.
class ThreadMember {
 public:
  ThreadMember(std::shared_ptr<ThreadRanks> ranks, std::shared_ptr<ThreadGroup> group, int rank,
               std::shared_ptr<const Patience> patience);

  int rank() const { return rank_; }
  size_t size() const { return group_->members.size(); }
  const std::vector<int>& world_ranks() const { return group_->members; }
  // The same rank's place in another group, as member `rank`.
  ThreadMember in(std::shared_ptr<ThreadGroup> group, int rank) const;

  // Joins this verb of the group and returns when its work is done. On many `bytes` the waiting
  // members share the work; otherwise the last to arrive does it.
  void meet(const char* verb, Place mine, int64_t bytes, const Work& work) const;
  // The same in two calls. Time spent between them delays nobody.
  std::shared_ptr<Meeting> come(Place mine, int64_t bytes, const Work& work) const;
  void finish(const char* verb, Meeting& meeting, const Work& work) const;

  // Joins each half with its partner's, which may come later. A half must be left before it goes.
  void start(std::deque<Half>& halves) const;
  // Waits until all of them are done.
  void finish(std::deque<Half>& halves) const;
  // Takes back those that have no partner.
  void leave(std::deque<Half>& halves) const;

  std::vector<int> roll_call(std::chrono::milliseconds patience) const;

 private:
  using Lock = std::unique_lock<std::mutex>;

  std::shared_ptr<Meeting> arrive(Place mine) const;
  void do_parts(Lock& lock, Meeting& meeting, const Work& work) const;
  void join(Lock& lock, Half& mine) const;
  Line& line_of(const Half& half) const;
  template <class Ready, class Late>
  void sleep(Lock& lock, const char* verb, const Ready& ready, const Late& late) const;
  int world_rank(int member) const { return group_->members[static_cast<size_t>(member)]; }
  std::condition_variable& bell(int member) const {
    return ranks_->bells[static_cast<size_t>(world_rank(member))];
  }
  void ring_others() const;

  std::shared_ptr<ThreadRanks> ranks_;
  std::shared_ptr<ThreadGroup> group_;
  int rank_;
  std::shared_ptr<const Patience> patience_;
};

}  // namespace anymesh
