#include "framework/run/engine_flags.h"

#include <utility>
#include <vector>

namespace anymesh {
namespace {

LossScaler scaler_of(const PrecisionConfig& p) {
  const double fixed = p.loss_scale.value_or(0);
  if (!p.fp16 || fixed != 0) return {.scale = p.fp16 ? fixed : 1};
  return {.dynamic = true,
          .scale = p.initial_loss_scale,
          .min_scale = p.min_loss_scale,
          .window = p.loss_scale_window,
          .hysteresis = p.hysteresis,
          .hysteresis_left = p.hysteresis};
}

TagValidation tag_validation(const CheckpointConfig& checkpoint) {
  using enum TagValidation;
  if (checkpoint.tag_validation == "Ignore") return Ignore;
  return checkpoint.tag_validation == "Fail" ? Fail : Warn;
}

// Returns the settings that a checkpoint keeps: all but how the ranks were started.
std::vector<Setting> settings_to_keep(const FlagTable& flags) {
  std::vector<Setting> settings = flags.settings();
  std::erase_if(settings, [](const Setting& setting) { return setting.flag == "local-ranks"; });
  return settings;
}

}  // namespace

EngineConfig engine_config(const Config& config, const BatchPlan& plan, const ModelFacts& model,
                           const FlagTable& flags, std::shared_ptr<const SaveLock> saves) {
  const OptimizerConfig& o = config.optimizer;
  return {.zero = {.stage = config.parallel.zero_stage,
                   .adam = {.beta1 = o.adam_beta1, .beta2 = o.adam_beta2, .eps = o.adam_eps},
                   .weight_decay = o.weight_decay,
                   .clip_grad = o.clip_grad,
                   .offload = {.optimizer = config.offload.optimizer == "nvme",
                               .params = config.offload.param == "nvme",
                               .nvme_path = config.offload.nvme_path}},
          .schedule = {.max_lr = o.lr,
                       .min_lr = o.min_lr,
                       .warmup_samples = plan.lr_warmup_samples,
                       .decay_samples = plan.lr_decay_samples,
                       .style = o.lr_decay_style},
          .scaler = scaler_of(config.precision),
          .global_batch_size = plan.global_batch_size,
          .micro_batch_size = config.batch.micro_batch_size,
          .activation_checkpointing = config.parallel.activation_checkpointing,
          .freeze = o.freeze,
          .check_for_nan = config.run.check_for_nan,
          .dropout_seed = config.run.seed,
          .vocab_size = model.vocab_size,
          .padded_vocab_size = model.padded_vocab_size,
          .seq_length = model.seq_length,
          .settings = settings_to_keep(flags),
          .model_flags = model.flags,
          .tag_validation = tag_validation(config.checkpoint),
          .patience = config.run.patience(),
          .save_lock = std::move(saves)};
}

}  // namespace anymesh
