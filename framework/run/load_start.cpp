#include "framework/run/load_start.h"

#include "framework/checkpoint/load/find_loadable_tags.h"
#include "framework/comm/agreement.h"
#include "framework/format/folder.h"
#include "framework/format/io.h"
#include "framework/format/layout.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;

LoadOptions::Schedule schedule_choice(const CheckpointConfig& checkpoint) {
  using enum LoadOptions::Schedule;
  if (checkpoint.override_scheduler) return ThisRuns;
  return checkpoint.use_checkpoint_scheduler ? Checkpoints : MustAgree;
}

// Loads --pretrained-checkpoint. Returns lines to print.
std::vector<std::string> begin_with(const CheckpointConfig& c, Engine& engine,
                                    const ImportForeign& import) {
  if (c.pretrained_checkpoint.empty()) return {};
  auto [folder, options] = pretrained_of(c);
  options.import = import;
  const LoadResult loaded = engine.load_checkpoint(folder, options);
  if (!loaded.path)
    throw CollectiveError("--pretrained-checkpoint " + c.pretrained_checkpoint +
                          (fs::is_directory(folder)
                               ? ": no checkpoint there. It holds: " + list_folder(folder)
                               : ": no such folder"));
  return loaded.report;
}

}  // namespace

std::pair<fs::path, LoadOptions> pretrained_of(const CheckpointConfig& c) {
  const fs::path folder = c.pretrained_checkpoint;
  const bool has_latest = fs::exists(folder / kLatestFile),
             is_tag =
                 !has_latest && !fs::exists(folder / kLatestUniversalFile) && is_tag_folder(folder);
  LoadOptions options{.load_module_only = true,
                      .universal = is_tag ? fs::exists(folder / kZeroFolder) : !has_latest,
                      .fallback = !c.no_fallback,
                      .verify = c.verify_checkpoint};
  if (!is_tag) return {folder, options};
  const fs::path tag = fs::canonical(folder);
  options.tag = tag.filename();
  return {tag.parent_path(), options};
}

std::vector<std::string> load_start(const CheckpointConfig& c, Engine& engine,
                                    const ImportForeign& import) {
  std::vector<std::string> report = begin_with(c, engine, import);
  if (c.load.empty()) return report;
  const LoadResult loaded =
      engine.load_checkpoint(c.load, {.tag = c.load_tag,
                                      .load_module_strict = !c.no_load_strict,
                                      .load_optimizer_states = !c.no_load_optim,
                                      .load_lr_scheduler_states = !c.no_load_lr_state,
                                      .load_module_only = c.finetune,
                                      .universal = c.universal_checkpoint,
                                      .fallback = !c.no_fallback,
                                      .allow_fresh_moments = c.allow_fresh_moments,
                                      .allow_other_bits = c.override_same_bits,
                                      .verify = c.verify_checkpoint,
                                      .load_rng = !c.no_load_rng,
                                      .schedule = schedule_choice(c),
                                      .import = import});
  if (!loaded.path && (!goes_on_in_place(c) || c.exit_on_missing_checkpoint))
    throw CollectiveError(loaded.report.back());
  report.insert(report.end(), loaded.report.begin(), loaded.report.end());
  return report;
}

void check_frozen(const Config& config, Engine& engine, std::vector<std::string>& report) {
  const bool excludes = config.checkpoint.exclude_frozen_parameters;
  const auto frozen = static_cast<int64_t>(engine.optimizer().frozen().size());
  if (excludes && max_over(*engine.grid().world, frozen) == 0)
    throw CollectiveError(
        "--exclude-frozen-parameters has no effect without --freeze or --lora-rank");
  if (config.engine.model.adapter_flags.empty() || engine.base_loaded()) return;
  const std::string random = "--" + config.engine.model.adapter_flags[0] +
                             " trains an adapter beside a model of random values",
                    fix = "; --pretrained-checkpoint DIR begins with a model that has learned";
  if (excludes)
    throw CollectiveError(random + ", and --exclude-frozen-parameters would save no trace of it" +
                          fix);
  report.push_back("WARNING: " + random + fix);
}

}  // namespace anymesh
