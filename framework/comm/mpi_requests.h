// Pending MPI messages. The wait for them names the ranks that do not come.
#pragma once

#include <mpi.h>

#include <memory>
#include <string>
#include <vector>

#include "framework/comm/mpi_job.h"

namespace anymesh {

// Throws unless `status` is MPI_SUCCESS.
void mpi_check(int status, const char* call);
#define MPI_CHECK(call) mpi_check((call), #call)

// The requests of one verb, in a group with this patience.
//
//   Requests requests(comm, patience, "exchange");
//   MPI_CHECK(MPI_Irecv(data, bytes, MPI_BYTE, from, 0, comm, requests.add(from)));
//   requests.wait();
class Requests final : public Pending {
 public:
  static constexpr int kAllMembers = -1;

  Requests(MPI_Comm comm, std::shared_ptr<const Patience> patience, const char* verb);
  ~Requests() override;
  Requests(const Requests&) = delete;
  Requests& operator=(const Requests&) = delete;

  // Returns room for a request that ends once this member of the group takes part.
  MPI_Request* add(int member = kAllMembers);
  void wait() override;

 private:
  std::string warning(bool last) const;  // empty if nobody is late any more
  int count() const { return static_cast<int>(list_.size()); }

  MPI_Comm comm_;
  std::shared_ptr<const Patience> patience_;
  const char* verb_;
  std::vector<MPI_Request> list_;
  std::vector<int> members_;
};

}  // namespace anymesh
