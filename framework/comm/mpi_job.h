// Runs the ranks of a job as processes that mpirun has started.
#pragma once

#include "framework/comm/job.h"

namespace anymesh {

// Initialises MPI for the life of the object. Create it at the start of main.
class MpiEnvironment final : public Job {
 public:
  MpiEnvironment(int* argc, char*** argv);
  ~MpiEnvironment() override;
  MpiEnvironment(const MpiEnvironment&) = delete;
  MpiEnvironment& operator=(const MpiEnvironment&) = delete;

  CommPtr world(Patience patience = {}) const override;
  CommPtr local() const override;

 private:
  void end(int status) const override;
};

// Whether an MPI launcher has started this process as a rank of a job.
bool started_by_launcher();

// Ends all ranks as MPI_Abort does, but without the dozen lines that MPI_Abort and mpirun print
// then (Open MPI 5's mpirun still prints five). Returns if the launcher does not use PMIx.
void abort_quietly(int status);

}  // namespace anymesh
