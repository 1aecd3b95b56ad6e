#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "tests/support/mpi_world.h"

namespace anymesh {
namespace {
CommPtr world;
}
CommPtr mpi_world() { return world; }
}  // namespace anymesh

// Every rank runs every test; rank 0 prints, the others only their failures.
int main(int argc, char** argv) {
  anymesh::MpiEnvironment mpi(&argc, &argv);
  anymesh::world = mpi.world();
  at::set_num_threads(1);
  testing::InitGoogleTest(&argc, argv);
  if (anymesh::world->rank() != 0) {
    auto& listeners = testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
    struct Failures : testing::EmptyTestEventListener {
      void OnTestPartResult(const testing::TestPartResult& result) override {
        if (result.failed()) {
          fprintf(stderr, "[rank %d] %s:%d\n%s\n", anymesh::world->rank(), result.file_name(),
                  result.line_number(), result.summary());
        }
      }
    };
    listeners.Append(new Failures);
  }
  const int status = RUN_ALL_TESTS();
  if (status != 0) mpi.abort(status);
  anymesh::world.reset();
  return status;
}
