#include "tools/plot/run_start.h"

#include <algorithm>
#include <cstdio>
#include <vector>

#include "framework/config/command_line.h"
#include "framework/config/parse.h"
#include "framework/util/errors.h"
#include "framework/util/shell_word.h"
#include "tools/plot/figure.h"

namespace anymesh {
namespace {

// Sets the flag of "  --num-layers 4" or "  --mock-data".
void set_flag(FlagTable& flags, const std::string& path, const std::string& line) {
  try {
    read_command_line(flags, shell_words(line));
  } catch (const UserError& error) {
    throw_error(path, ": '", line, "': ", error.what());
  }
}

void check(const RunStart& run) {
  const auto& [mesh, parameters, config, gpt, plan] = run;
  const auto& [tp, pp] = std::pair(config.parallel.tp, config.parallel.pp);
  if (mesh.tp_size != tp || mesh.pp_size != pp || parameters < 1)
    throw_error("the lines 'mesh:' and 'model:' do not fit its flags");
  if (config.batch.global_batch_size == 0 && !config.run.deepspeed_config.empty())
    throw_error("--global-batch-size is in ", config.run.deepspeed_config,
                " alone; give the flag to the run as well");
  validate(config, gpt, mesh.world_size());
}

}  // namespace

RunStart read_run_start(const std::string& path) {
  const std::vector<std::string> lines = lines_of(path);
  const auto is_mesh = [](const std::string& line) { return line.starts_with("mesh: "); };
  auto line = std::ranges::find_if(lines, is_mesh);
  RunStart run;
  auto& [mesh, parameters, config, gpt, plan] = run;
  if (line == lines.end() ||
      std::sscanf(line->c_str(), "mesh: tensor %4d x pipeline %4d x data %4d", &mesh.tp_size,
                  &mesh.pp_size, &mesh.dp_size) != 3 ||
      mesh.tp_size < 1 || mesh.pp_size < 1 || mesh.dp_size < 1 ||
      int64_t{mesh.tp_size} * mesh.pp_size > INT32_MAX / mesh.dp_size)
    throw_error(path,
                ": expected 'mesh: tensor T x pipeline P x data D' and the flags below it, as "
                "pretrain_gpt prints them at its start");
  FlagTable flags("", "");
  add_flags(flags, config);
  add_flags(flags, gpt);
  bool flags_begin = false;
  for (++line; line != lines.end() && !is_mesh(*line); ++line) {
    std::sscanf(line->c_str(), "model: %*d parameters, at most %12ld on a rank", &parameters);
    const bool is_flag = line->starts_with("  ");
    if (flags_begin && !is_flag) break;
    flags_begin = is_flag;
    if (is_flag) set_flag(flags, path, *line);
  }
  try {
    check(run);
  } catch (const std::exception& error) {
    throw_error(path, ": ", error.what());
  }
  gpt = resolved(gpt);
  plan = plan_batches(config, mesh.world_size());
  return run;
}

}  // namespace anymesh
