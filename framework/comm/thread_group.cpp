#include "framework/comm/thread_group.h"

#include <c10/util/Exception.h>
#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "framework/comm/thread_job.h"

namespace anymesh {
namespace {

using Clock = std::chrono::steady_clock;

// The fewest bytes worth waking the members for, so that they share the work.
constexpr int64_t kWorthSharing = 256 << 10;

std::vector<int> missing_from(const Meeting& meeting) {
  std::vector<int> absent;
  for (size_t member = 0; member < meeting.here.size(); ++member)
    if (!meeting.here[member]) absent.push_back(static_cast<int>(member));
  return absent;
}

}  // namespace

void ThreadRanks::end(std::exception_ptr error) {
  const std::lock_guard lock(mutex);
  if (!first_error) first_error = std::move(error);
  for (std::condition_variable& bell : bells) bell.notify_all();
}

ThreadMember::ThreadMember(std::shared_ptr<ThreadRanks> ranks, std::shared_ptr<ThreadGroup> group,
                           int rank, std::shared_ptr<const Patience> patience)
    : ranks_(std::move(ranks)),
      group_(std::move(group)),
      rank_(rank),
      patience_(std::move(patience)) {}

ThreadMember ThreadMember::in(std::shared_ptr<ThreadGroup> group, int rank) const {
  return {ranks_, std::move(group), rank, patience_};
}

void ThreadMember::meet(const char* verb, Place mine, int64_t bytes, const Work& work) const {
  finish(verb, *come(mine, bytes, work), work);
}

std::shared_ptr<Meeting> ThreadMember::come(Place mine, int64_t bytes, const Work& work) const {
  Lock lock(ranks_->mutex);
  std::shared_ptr<Meeting> meeting = arrive(mine);
  if (meeting->missing > 0) return meeting;
  if (bytes < kWorthSharing) {
    do_parts(lock, *meeting, work);
  } else {
    lock.unlock();
    ring_others();
  }
  return meeting;
}

void ThreadMember::finish(const char* verb, Meeting& meeting, const Work& work) const {
  const auto late = [&] { return missing_from(meeting); };
  Lock lock(ranks_->mutex);
  sleep(
      lock, verb, [&] { return meeting.missing == 0; }, late);
  do_parts(lock, meeting, work);
  bell(rank_).wait(lock, [&] { return meeting.is_over(); });
}

// Joins the member's next meeting, which stays open until all members are there.
std::shared_ptr<Meeting> ThreadMember::arrive(Place mine) const {
  if (ranks_->first_error) throw JobEnded();
  ThreadGroup& group = *group_;
  const size_t number = group.next[static_cast<size_t>(rank_)]++;
  if (number - group.first == group.open.size())
    group.open.push_back(std::make_shared<Meeting>(size()));
  const std::shared_ptr<Meeting> meeting = group.open[number - group.first];
  meeting->places[static_cast<size_t>(rank_)] = mine;
  meeting->here[static_cast<size_t>(rank_)] = true;
  if (--meeting->missing == 0) {  // all meetings before it are complete too
    group.open.pop_front();
    ++group.first;
  }
  return meeting;
}

// Does all parts that nobody has taken. A part that throws counts as done too, because nobody
// touches the members' tensors any more.
void ThreadMember::do_parts(Lock& lock, Meeting& meeting, const Work& work) const {
  while (meeting.has_parts()) {
    const size_t part = meeting.taken++;
    lock.unlock();
    const auto count = c10::make_scope_exit([&] {
      lock.lock();
      if (++meeting.done < size() || size() == 1) return;
      lock.unlock();
      ring_others();
      lock.lock();
    });
    work(meeting.places, part);
  }
}

void ThreadMember::start(std::deque<Half>& halves) const {
  Lock lock(ranks_->mutex);
  for (Half& half : halves) join(lock, half);
}

void ThreadMember::finish(std::deque<Half>& halves) const {
  Lock lock(ranks_->mutex);
  const auto waits = [](const Half& half) { return !half.done; };
  sleep(
      lock, "exchange", [&] { return std::ranges::none_of(halves, waits); },
      [&] {
        std::vector<int> late;
        for (const Half& half : halves)
          if (waits(half)) late.push_back(half.partner);
        return late;
      });
  for (const Half& half : halves)
    TORCH_CHECK(half.bytes == half.others_bytes, "exchange of ", group_->name, ": ", half.bytes,
                " bytes here, ", half.others_bytes, " bytes at rank ", world_rank(half.partner));
}

void ThreadMember::leave(std::deque<Half>& halves) const {
  Lock lock(ranks_->mutex);
  for (Half& half : halves) {
    std::erase(half.sends ? line_of(half).sends : line_of(half).receives, &half);
    bell(rank_).wait(lock, [&] { return half.done || !half.has_partner; });
  }
}

Line& ThreadMember::line_of(const Half& half) const {
  return group_
      ->lines[half.sends ? std::pair(rank_, half.partner) : std::pair(half.partner, rank_)];
}

// The second of two partners to arrive does the copy.
void ThreadMember::join(Lock& lock, Half& mine) const {
  if (ranks_->first_error) throw JobEnded();
  Line& line = line_of(mine);
  std::deque<Half*>& others = mine.sends ? line.receives : line.sends;
  if (others.empty()) return (mine.sends ? line.sends : line.receives).push_back(&mine);
  Half& other = *others.front();
  others.pop_front();
  mine.has_partner = other.has_partner = true;
  mine.others_bytes = other.bytes;
  other.others_bytes = mine.bytes;
  lock.unlock();
  if (mine.bytes == mine.others_bytes && mine.bytes > 0)
    std::memcpy((mine.sends ? other : mine).data, (mine.sends ? mine : other).data, mine.bytes);
  lock.lock();
  mine.done = other.done = true;
  bell(mine.partner).notify_one();
}

std::vector<int> ThreadMember::roll_call(std::chrono::milliseconds patience) const {
  const auto deadline = Clock::now() + patience;
  Lock lock(ranks_->mutex);
  const std::shared_ptr<Meeting> meeting = arrive({});
  const auto answered = [&] { return meeting->missing == 0 || meeting->absent; };
  const auto ready = [&] { return answered() || ranks_->first_error; };
  const bool in_time = bell(rank_).wait_until(lock, deadline, ready);
  if (!answered() && in_time) throw JobEnded();
  if (!answered()) meeting->absent = missing_from(*meeting);
  ring_others();
  return meeting->absent.value_or(std::vector<int>());
}

template <class Ready, class Late>
void ThreadMember::sleep(Lock& lock, const char* verb, const Ready& ready, const Late& late) const {
  const auto awake = [&] { return ready() || ranks_->first_error; };
  for (const bool last : {false, true}) {
    const auto time = (last ? Patience::kTimes - 1 : 1) * patience_->time;
    if (awake() || bell(rank_).wait_for(lock, time, awake)) break;
    std::set<int> ranks;
    for (const int member : late()) ranks.insert(world_rank(member));
    const std::string warning =
        patience_->warning(world_rank(rank_), verb, group_->name, /*any=*/false, ranks, last);
    lock.unlock();
    (last ? patience_->give_up : patience_->say)(warning);
    lock.lock();
  }
  bell(rank_).wait(lock, awake);
  if (!ready()) throw JobEnded();
}

void ThreadMember::ring_others() const {
  for (size_t member = 0; member < size(); ++member)
    if (static_cast<int>(member) != rank_) bell(static_cast<int>(member)).notify_one();
}

}  // namespace anymesh
