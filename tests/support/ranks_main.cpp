// The main of tests on several ranks, as threads or as processes:
//
//   engine_ranks_test --local-ranks 4
//   mpirun -n 4 engine_ranks_test
//
// Rank 0 of several processes prints. The others print only their failures.
#include <ATen/Parallel.h>

#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "framework/comm/mpi_job.h"
#include "framework/comm/thread_job.h"
#include "tests/support/ranks.h"

namespace anymesh {
namespace {

int local_ranks = 0;  // 0: use the ranks of mpirun
thread_local const Job* job = nullptr;
thread_local CommPtr world;

struct Failures : testing::EmptyTestEventListener {
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (result.failed())
      std::fprintf(stderr, "[rank %d] %s:%d\n%s\n", world->rank(), result.file_name(),
                   result.line_number(), result.summary());
  }
};

int run_as_processes(int* argc, char*** argv) {
  MpiEnvironment mpi(argc, argv);
  job = &mpi;
  world = mpi.world();
  if (world->rank() != 0) {
    auto& listeners = testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new Failures);
  }
  const int status = RUN_ALL_TESTS();
  if (status != 0) mpi.abort(status);
  world.reset();
  return status;
}

}  // namespace

const Job& test_job() { return *job; }
CommPtr test_world() { return world; }

void on_every_rank(const std::function<void()>& work) {
  if (local_ranks == 0) return work();
  run_on_threads(local_ranks, [&](const Job& mine) {
    job = &mine;
    world = mine.world();
    work();
    world.reset();
    if (testing::Test::HasFatalFailure()) throw std::runtime_error("a rank has failed an ASSERT");
  });
}

}  // namespace anymesh

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  at::set_num_threads(1);
  if (anymesh::started_by_launcher()) return anymesh::run_as_processes(&argc, &argv);
  if (argc == 3 && argv[1] == std::string("--local-ranks"))
    anymesh::local_ranks = std::atoi(argv[2]);
  if (anymesh::local_ranks >= 1) {
    const std::string chosen = GTEST_FLAG_GET(filter);
    const bool leaves_out = chosen.find('-') != std::string::npos;
    GTEST_FLAG_SET(filter, chosen + (leaves_out ? ":*OfProcesses.*" : "-*OfProcesses.*"));
    return RUN_ALL_TESTS();
  }
  std::fprintf(stderr, "usage: %s --local-ranks N, or mpirun -n N %s\n", argv[0], argv[0]);
  return 2;
}
