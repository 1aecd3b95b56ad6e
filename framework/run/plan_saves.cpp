#include "framework/run/plan_saves.h"

#include <algorithm>
#include <numeric>

#include "framework/checkpoint/save/retention.h"
#include "framework/comm/agreement.h"
#include "framework/run/trainer.h"

namespace anymesh {

void plan_saves(const CheckpointConfig& c, const BatchPlan& plan, Engine& engine,
                std::vector<std::string>& report) {
  if (c.save.empty()) return;
  const int64_t done = engine.state().iteration, last = plan.train_iters;
  const auto multiples = [&](int64_t interval) {
    return interval > 0 ? std::max<int64_t>(0, last / interval - done / interval) : 0;
  };
  const int64_t interval = c.save_interval, retain = c.save_retain_interval,
                step = interval > 0 ? interval / std::gcd(interval, retain) : 0,  // unit: `retain`
      both = retain > 0 && step <= last / retain ? step * retain : 0;
  const bool one_more = c.save_interval == 0 || last % c.save_interval != 0,
             retains_it = one_more && retain > 0 && last % retain == 0;
  const SavePlan saves{.folder = c.save,
                       .saves = multiples(c.save_interval) + (one_more ? 1 : 0),
                       .limit = save_limit(c),
                       .retain_interval = retain,
                       .retained = multiples(both) + (retains_it ? 1 : 0)};
  SaveSize size;
  try {
    size = engine.save_size(c.save, save_options(c));
  } catch (const CollectiveError& error) {
    throw CollectiveError("--save " + c.save + ": " + error.what());
  }
  all_or_none(*engine.grid().world, [&] {
    for (std::string& line : preflight(size, saves)) report.push_back(std::move(line));
  });
}

}  // namespace anymesh
