#include "framework/checkpoint/args.h"
#include "framework/format/layout.h"
#include "framework/util/errors.h"
#include "tools/generate/generate.h"
#include "tools/generate/setup.h"

namespace anymesh {
namespace {

std::string description(const std::string& program) {
  return "Writes text from a checkpoint, token by token as it comes, on one process.\n\n  " +
         program + " --load checkpoints --prompts \"In the beginning\" --temperature 0.8\n\n";
}

// Returns the vocabulary that the run had.
int vocabulary_of(const Checkpoint& checkpoint) {
  const Value info = checkpoint.metadata.find(keys::kUniversalInfo).value_or(Value::dict());
  const int64_t size = info.at(keys::kOriginalVocabSize).as_int();
  if (size < 1 || size > INT32_MAX)
    throw DamagedFile(info.where() + ": a vocabulary of " + std::to_string(size));
  return static_cast<int>(size);
}

// Sets the model's flags from the checkpoint, and the least of the framework's that a run needs.
ModelFacts settle(ModelDefinition& model, Config& config, const Checkpoint& checkpoint) {
  const Value args = run_args(checkpoint);
  FlagTable flags("", "");
  model.add_flags(flags);
  read_args(flags, args);
  config.data.mock_data = true;
  config.data.vocab_size = vocabulary_of(checkpoint);
  config.batch.train_iters = 1;
  config.engine.schedule.max_lr = 1;
  return model.settle(config, config.data.vocab_size, /*world_size=*/1);
}

void write(ModelDefinition& model, const std::string& program, const GenerateFlags& flags,
           const ProcessGrid& grid) {
  TextSetup setup;
  open_checkpoint(flags, setup);
  Config config;
  const ModelFacts facts = settle(model, config, setup.checkpoint);
  read_prompts(flags, config.data.vocab_size, setup);
  fit_window(flags, facts.seq_length, setup);
  print_notes(program, setup);
  const auto stage = model.make_stage(config, grid, torch::kFloat);
  load_weights(*stage, grid, setup);
  StageTextModel text(*stage);
  write_texts(text, setup, flags);
}

}  // namespace

int generate(int argc, char** argv, const std::string& program, const MakeModel& make_model) {
  return run_on_one_rank(
      program.c_str(), argc, argv,
      [&](const std::vector<std::string>& args) {
        return parse_generate_flags(program, description(program), args);
      },
      [&](const GenerateFlags& flags, const ProcessGrid& grid) {
        write(*make_model(), program, flags, grid);
      });
}

}  // namespace anymesh
