#include "framework/run/checkpoint_args.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <set>

#include "framework/checkpoint/args.h"
#include "framework/checkpoint/load/find_loadable_tags.h"
#include "framework/comm/agreement.h"
#include "framework/format/layout.h"
#include "framework/run/launch.h"
#include "framework/run/load_start.h"

namespace anymesh {
namespace {

// The metadata of what the run starts from, and the flag that names it.
struct Start {
  Value metadata;  // None if there is nothing
  std::string flag;
};

Start start_of(const CheckpointConfig& c) {
  Start start;
  if (!c.load.empty()) {
    start.flag = "--load " + c.load;
    start.metadata =
        saved_metadata(c.load, {.tag = c.load_tag, .universal = c.universal_checkpoint});
  }
  if (start.metadata || c.pretrained_checkpoint.empty()) return start;
  const auto [folder, options] = pretrained_of(c);
  return {saved_metadata(folder, options), "--pretrained-checkpoint " + c.pretrained_checkpoint};
}

}  // namespace

void take_checkpoint_args(FlagTable& flags, size_t first_of_model, const Config& config,
                          std::vector<std::string>& notes) {
  constexpr const char* kTokenizer[] = {"tokenizer-type",   "vocab-file",
                                        "merge-file",       "tokenizer-model",
                                        "tiktoken-pattern", "tiktoken-num-special-tokens",
                                        "vocab-size"};
  const auto [metadata, flag] = start_of(config.checkpoint);
  const Value args = metadata ? metadata.find(keys::kArgs) : Value();
  if (!args) {
    notes.push_back("--use-checkpoint-args: " + flag +
                    (metadata ? " holds a checkpoint without args" : " holds no checkpoint yet") +
                    "; the flags hold");
    return;
  }
  const auto given = [&](const char* flag) { return flags.given(flag); };
  const bool own_tokenizer = config.data.mock_data || std::ranges::any_of(kTokenizer, given);
  std::set<std::string> wanted;
  if (!own_tokenizer) wanted.insert(std::begin(kTokenizer), std::end(kTokenizer));
  for (size_t i = first_of_model; i < flags.flags().size(); ++i)
    if (const FlagTable::Flag& flag = flags.flags()[i]; flag.origin.empty())
      wanted.insert(flag.name);
  read_args(flags, args, [&](const Setting& setting) { return wanted.contains(setting.flag); });
  notes.push_back("--use-checkpoint-args: flags that the command line lacks are those of " +
                  args.where());
}

Vocabulary vocabulary_of_run(const Config& config, Communicator& world,
                             std::vector<std::string>& notes) {
  constexpr int64_t kMostPadding = 4096;
  const CheckpointConfig& c = config.checkpoint;
  Vocabulary vocabulary;
  all_or_none(world, [&] { vocabulary = vocabulary_of(config.data); });
  const int own = vocabulary.size;
  check_same(world, {{"the vocabulary's size", std::to_string(own)},
                     {"the token that ends documents", std::to_string(vocabulary.eod)}});
  if (config.data.tokenizer_type == "NullTokenizer" || (c.load + c.pretrained_checkpoint).empty())
    return vocabulary;
  const int64_t saved = max_over(world, saved_vocabulary(start_of(c).metadata));
  if (saved <= own || saved - own > kMostPadding) return vocabulary;
  notes.push_back(c10::str("the vocabulary of the checkpoint has ", saved,
                           " entries, the tokenizer ", own,
                           ": the model keeps those that no text has, padding of its makers"));
  return {static_cast<int>(saved), vocabulary.eod};
}

}  // namespace anymesh
