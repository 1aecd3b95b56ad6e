#include "framework/comm/mpi_requests.h"

#include <algorithm>
#include <set>
#include <utility>

namespace anymesh {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kLooks = 64;  // tests of the messages for each look at the clock
// A longer time between two looks counts as this: the rank itself was stopped, and did not wait.
constexpr std::chrono::milliseconds kLongestLook{250};

// Returns the world ranks of these members of a group.
std::set<int> world_ranks(MPI_Comm comm, const std::set<int>& members) {
  MPI_Group group = MPI_GROUP_NULL, world = MPI_GROUP_NULL;
  MPI_CHECK(MPI_Comm_group(comm, &group));
  MPI_CHECK(MPI_Comm_group(MPI_COMM_WORLD, &world));
  const std::vector<int> mine(members.begin(), members.end());
  std::vector<int> ranks(mine.size());
  MPI_CHECK(MPI_Group_translate_ranks(group, static_cast<int>(mine.size()), mine.data(), world,
                                      ranks.data()));
  MPI_Group_free(&group);
  MPI_Group_free(&world);
  return {ranks.begin(), ranks.end()};
}

}  // namespace

void mpi_check(int status, const char* call) {
  if (status == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(status, text, &length);
  TORCH_CHECK(false, call, " failed: ", std::string(text, static_cast<size_t>(length)));
}

Requests::Requests(MPI_Comm comm, std::shared_ptr<const Patience> patience, const char* verb)
    : comm_(comm), patience_(std::move(patience)), verb_(verb) {}

Requests::~Requests() {
  if (!list_.empty()) MPI_Waitall(count(), list_.data(), MPI_STATUSES_IGNORE);
}

MPI_Request* Requests::add(int member) {
  members_.push_back(member);
  return &list_.emplace_back();
}

// Polls, as MPI_Waitall does, so that it can check the time.
void Requests::wait() {
  int done = 0, status = MPI_SUCCESS;
  Clock::time_point last;
  Clock::duration waited{};
  bool warned = false;
  for (int64_t looks = 0; status == MPI_SUCCESS; ++looks) {
    status = MPI_Testall(count(), list_.data(), &done, MPI_STATUSES_IGNORE);
    if (done) break;
    if (looks % kLooks != 0) continue;
    const Clock::time_point now = Clock::now();
    if (looks > 0) waited += std::min<Clock::duration>(now - last, kLongestLook);
    last = now;
    if (waited < (warned ? Patience::kTimes : 1) * patience_->time) continue;
    const std::string text = warning(warned);
    if (text.empty()) continue;
    (warned ? patience_->give_up : patience_->say)(text);
    warned = true;
  }
  list_.clear();
  mpi_check(status, verb_);
}

std::string Requests::warning(bool last) const {
  int rank = 0, size = 1, length = 0;
  char name[MPI_MAX_OBJECT_NAME];
  MPI_CHECK(MPI_Comm_rank(comm_, &rank));
  MPI_CHECK(MPI_Comm_size(comm_, &size));
  MPI_CHECK(MPI_Comm_get_name(comm_, name, &length));
  std::set<int> late;
  for (size_t i = 0; i < list_.size(); ++i) {
    int done = 0;
    MPI_CHECK(MPI_Request_get_status(list_[i], &done, MPI_STATUS_IGNORE));
    if (!done) late.insert(members_[i]);
  }
  const bool any = late.erase(kAllMembers) > 0;
  for (int r = 0; any && r < size; ++r)
    if (r != rank) late.insert(r);
  if (late.empty()) return "";
  return patience_->warning(*world_ranks(comm_, {rank}).begin(), verb_, name, any,
                            world_ranks(comm_, late), last);
}

}  // namespace anymesh
