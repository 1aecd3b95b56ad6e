
#include "framework/comm/process_grid.h"
#include "tests/support/message_of.h"
#include "tests/support/ranks.h"

namespace anymesh {
namespace {

torch::Tensor values_of(int rank, int64_t n, torch::Dtype dtype) {
  // The values have very different sizes, so that the order of a sum shows in its last bits.
  const torch::Tensor i = torch::arange(n, torch::kDouble) + 1;
  return (torch::sin(i * (rank + 1)) * torch::pow(10.0, (i + rank).remainder(7.0))).to(dtype);
}

torch::Tensor folded(int ranks, int64_t n, torch::Dtype dtype) {
  const auto sum_dtype = dtype == torch::kBFloat16 ? torch::kFloat : dtype;
  torch::Tensor sum = values_of(0, n, dtype).to(sum_dtype);
  for (int r = 1; r < ranks; ++r) sum = sum + values_of(r, n, dtype).to(sum_dtype);
  return sum.to(dtype);
}

class Collectives : public testing::TestWithParam<std::tuple<int, int64_t, torch::Dtype>> {};
struct CollectivesRank : RankFixtureOf<Collectives> {};

RANKS_TEST_P(Collectives, SumsAreFoldedInRankOrder) {
  const auto [ranks, n, dtype] = GetParam();
  const CommPtr comm = first_ranks(ranks);
  if (!comm) return;
  torch::Tensor all = values_of(comm->rank(), n, dtype);
  comm->all_reduce(all);
  EXPECT_TRUE(torch::equal(all, folded(ranks, n, dtype)));

  if (n % ranks == 0) {
    torch::Tensor in = values_of(comm->rank(), n, dtype), part = torch::empty({n / ranks}, dtype);
    comm->reduce_scatter(part, in);
    const torch::Tensor expected =
        folded(ranks, n, dtype).narrow(0, comm->rank() * (n / ranks), n / ranks);
    EXPECT_TRUE(torch::equal(part, expected));
    comm->reduce_scatter(in.narrow(0, comm->rank() * (n / ranks), n / ranks), in);  // in place
    EXPECT_TRUE(torch::equal(in.narrow(0, comm->rank() * (n / ranks), n / ranks), expected));
  }
}

RANKS_TEST_P(Collectives, GatherBroadcastExchangeMaximum) {
  const auto [ranks, n, dtype] = GetParam();
  const CommPtr comm = first_ranks(ranks);
  if (!comm) return;
  torch::Tensor out = torch::zeros({ranks, n}, dtype);
  comm->all_gather(out, values_of(comm->rank(), n, dtype));
  for (int r = 0; r < ranks; ++r) EXPECT_TRUE(torch::equal(out[r], values_of(r, n, dtype)));

  torch::Tensor from_last = values_of(comm->rank(), n, dtype);
  comm->broadcast(from_last, ranks - 1);
  EXPECT_TRUE(torch::equal(from_last, values_of(ranks - 1, n, dtype)));

  const int next = (comm->rank() + 1) % ranks, previous = (comm->rank() + ranks - 1) % ranks;
  torch::Tensor received = torch::zeros({n}, dtype);
  comm->exchange(values_of(comm->rank(), n, dtype), next, received, previous);
  EXPECT_TRUE(torch::equal(received, values_of(previous, n, dtype)));

  // Rank r sends rank q the first (r + q) % 3 * n of its values.
  const auto count = [n = n](int r, int q) { return (r + q) % 3 * n; };
  std::vector<int64_t> send, receive;
  std::vector<torch::Tensor> sent{torch::empty({0}, dtype)}, due{torch::empty({0}, dtype)};
  for (int r = 0; r < ranks; ++r) {
    send.push_back(count(comm->rank(), r));
    receive.push_back(count(r, comm->rank()));
    sent.push_back(values_of(comm->rank(), 2 * n, dtype).narrow(0, 0, send.back()));
    due.push_back(values_of(r, 2 * n, dtype).narrow(0, 0, receive.back()));
  }
  torch::Tensor arrived = torch::zeros_like(torch::cat(due));
  comm->all_to_all(arrived, torch::cat(sent), receive, send);
  EXPECT_TRUE(torch::equal(arrived, torch::cat(due)));

  torch::Tensor maximum = values_of(comm->rank(), n, dtype), expected = values_of(0, n, dtype);
  for (int r = 1; r < ranks; ++r) expected = torch::maximum(expected, values_of(r, n, dtype));
  comm->all_reduce(maximum, ReduceOp::Max);
  EXPECT_TRUE(torch::equal(maximum, expected));
}

INSTANTIATE_TEST_SUITE_P(
    Sizes, Collectives,
    testing::Combine(testing::Values(1, 2, 3, 5, 8), testing::Values<int64_t>(0, 1, 7, 120),
                     testing::Values(torch::kFloat, torch::kDouble, torch::kBFloat16)));
// More than one bucket.
INSTANTIATE_TEST_SUITE_P(Large, Collectives,
                         testing::Combine(testing::Values(2), testing::Values<int64_t>(2'400'000),
                                          testing::Values(torch::kFloat)));

// Rank 3 comes to a verb only once all others have said that they wait for it. Ranks are numbered
// backwards in their group.
RANKS_TEST(Patience, NamesTheRankThatLetsOthersWaitAndTheVerb) {
  constexpr int kLate = 3;
  const CommPtr world = test_world();
  const int rank = world->rank(), ranks = world->size();
  std::vector<std::string> said;
  const Patience patience{.time = std::chrono::milliseconds(100),
                          .say = [&](const std::string& text) {
                            said.push_back(text);
                            torch::Tensor word = torch::zeros({1});
                            if (said.size() == 1) world->exchange(word, kLate, {}, 0);
                          }};
  const CommPtr comm = test_job().world(patience)->split(0, -rank, "dp");
  const auto check = [&](const std::string& verb, const auto& call) {
    said.clear();
    world->barrier();
    torch::Tensor word = torch::zeros({1});
    for (int r = 0; rank == kLate && r < ranks; ++r)
      if (r != kLate) world->exchange({}, 0, word, r);
    call();
    if (rank == kLate) return;
    ASSERT_FALSE(said.empty()) << verb;
    EXPECT_THAT(said[0],
                testing::MatchesRegex(".rank " + std::to_string(rank) + ". has waited 1 s in " +
                                      verb + " of dp for .*ranks? [0-9, ]*3[, ].*"));
  };
  torch::Tensor mine = torch::ones({64}), all = torch::zeros({64 * ranks});
  check("all_reduce", [&] { comm->all_reduce(mine); });
  EXPECT_TRUE(torch::equal(mine, torch::full({64}, ranks)));
  check("all_gather", [&] { comm->all_gather(all, mine); });
  check("reduce_scatter", [&] { comm->reduce_scatter(mine, all); });
  const std::vector<int64_t> each(static_cast<size_t>(ranks), 64);
  check("all_to_all",
        [&] { comm->all_to_all(torch::empty_like(all), torch::ones_like(all), each, each); });
  check("barrier", [&] { comm->barrier(); });
  const int root = ranks - 1 - kLate;
  check("broadcast", [&] { comm->broadcast(mine, root); });
  check("exchange", [&] {
    for (int r = 0; rank == kLate && r < ranks; ++r)
      if (r != root) comm->exchange(mine, r, {}, 0);
    if (rank != kLate) comm->exchange({}, 0, mine, root);
  });
  EXPECT_TRUE(torch::equal(mine, torch::full({64}, ranks * ranks)));
}

using Ranks = std::vector<int64_t>;

// Returns the ranks of a group, as the world numbers them.
Ranks ranks_in(const CommPtr& comm) {
  torch::Tensor ranks = torch::empty({comm->size()}, torch::kLong);
  comm->all_gather(ranks, torch::full({1}, test_world()->rank(), torch::kLong));
  return {ranks.data_ptr<int64_t>(), ranks.data_ptr<int64_t>() + ranks.numel()};
}

RANKS_TEST(ProcessGrid, GroupsHoldWhoTheyShould) {
  const ProcessGrid grid(test_world(), {.pp_size = 2, .dp_size = 2, .tp_size = 2});
  const int rank = test_world()->rank();
  EXPECT_EQ(grid.topology.rank_of(grid.coord), rank);
  EXPECT_EQ(ranks_in(grid.tp), (Ranks{rank / 2 * 2, rank / 2 * 2 + 1}));
  EXPECT_EQ(ranks_in(grid.pp), (Ranks{rank % 4, rank % 4 + 4}));
  EXPECT_EQ(ranks_in(grid.dp), (Ranks{rank / 4 * 4 + rank % 2, rank / 4 * 4 + rank % 2 + 2}));
  const int first = rank % 4 / 2 * 2;
  EXPECT_EQ(ranks_in(grid.model), (Ranks{first, first + 1, first + 4, first + 5}));
  EXPECT_EQ(ranks_in(grid.embedding), ranks_in(grid.pp));
}

// tp 2 x dp 4. Where tp cuts experts, a tp rank's four dp ranks hold them; else all eight do.
RANKS_TEST(ProcessGrid, ExpertsHaveAGridOfTheirOwn) {
  const int rank = test_world()->rank(), tp = rank % 2, dp = rank / 2;
  const ProcessGrid cut(test_world(), {.dp_size = 4, .tp_size = 2, .ep_size = 2});
  EXPECT_EQ(ranks_in(cut.ep), (Ranks{dp / 2 * 4 + tp, dp / 2 * 4 + 2 + tp}));
  EXPECT_EQ(ranks_in(cut.edp), (Ranks{dp % 2 * 2 + tp, dp % 2 * 2 + 4 + tp}));
  EXPECT_EQ(cut.topology.ep_rank_of(cut.coord), cut.ep->rank());
  EXPECT_EQ(cut.topology.edp_rank_of(cut.coord), cut.edp->rank());

  const ProcessGrid whole(test_world(),
                          {.dp_size = 4, .tp_size = 2, .ep_size = 4, .whole_experts = true});
  const int first = rank / 4 * 4;
  EXPECT_EQ(ranks_in(whole.ep), (Ranks{first, first + 1, first + 2, first + 3}));
  EXPECT_EQ(ranks_in(whole.edp), (Ranks{rank % 4, rank % 4 + 4}));

  const ProcessGrid alone(test_world(), {.dp_size = 4, .tp_size = 2});
  EXPECT_EQ(ranks_in(alone.ep), (Ranks{rank}));
  EXPECT_EQ(ranks_in(alone.edp), ranks_in(alone.dp));
}

RANKS_TEST(ProcessGrid, MiddleStagesAreAloneInTheEmbeddingGroup) {
  const ProcessGrid grid(test_world(), {.pp_size = 4, .dp_size = 1, .tp_size = 2});
  EXPECT_EQ(grid.embedding->size(), grid.is_first_stage() || grid.is_last_stage() ? 2 : 1);
}

}  // namespace
}  // namespace anymesh
