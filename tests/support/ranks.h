#pragma once

#include <gtest/gtest.h>

#include <functional>

#include "framework/comm/job.h"

namespace anymesh {

// Tests on several ranks (tests/support/ranks_main.cpp). Every rank runs the whole body:
//
//   RANKS_TEST(Sums, AreFolded) { test_world()->all_reduce(t); EXPECT_TRUE(...); }
//   RANKS_TEST_F(Recovery, FindsTheNewest) { ... }     Recovery: a RankFixture, one for each rank
//   RANKS_TEST_P(Meshes, AreAlike) { ... GetParam() ... }   MeshesRank: a RankFixtureOf<Meshes>,
//                                                           which is a testing::TestWithParam
//
// The ranks are threads of the test, or processes of mpirun. Suites with names that end in
// OfProcesses need processes, because they change a process-wide setting such as RLIMIT_FSIZE. A
// rank that throws or fails an ASSERT ends the test for all threads.

// Return the job and the world of the calling rank.
const Job& test_job();
CommPtr test_world();

// Returns the first `ranks` ranks as their own world; null on the others, which sit the case out.
inline CommPtr first_ranks(int ranks) {
  const CommPtr world = test_world();
  const CommPtr part = world->split(world->rank() < ranks ? 0 : 1, world->rank());
  return world->rank() < ranks ? part : CommPtr();
}

struct RankFixture {
  virtual ~RankFixture() = default;
  virtual void SetUp() {}
  virtual void TearDown() {}
  virtual void body() = 0;
};

// A RankFixture with the suite's parameter.
template <class Suite>
struct RankFixtureOf : RankFixture {
  static const typename Suite::ParamType& GetParam() { return Suite::GetParam(); }
};

void on_every_rank(const std::function<void()>& work);

template <class Test>
void run_on_every_rank() {
  on_every_rank([] {
    Test test;
    test.SetUp();
    test.body();
    test.TearDown();
  });
}

#define ANYMESH_RANKS_TEST(Declare, Suite, Fixture, Name)                \
  struct Suite##_##Name##_OnRank final : Fixture {                       \
    void body() override;                                                \
  };                                                                     \
  Declare(Suite, Name) { run_on_every_rank<Suite##_##Name##_OnRank>(); } \
  void Suite##_##Name##_OnRank::body()

#define RANKS_TEST(Suite, Name) ANYMESH_RANKS_TEST(TEST, Suite, RankFixture, Name)
#define RANKS_TEST_F(Suite, Name) ANYMESH_RANKS_TEST(TEST, Suite, Suite, Name)
#define RANKS_TEST_P(Suite, Name) ANYMESH_RANKS_TEST(TEST_P, Suite, Suite##Rank, Name)

}  // namespace anymesh
