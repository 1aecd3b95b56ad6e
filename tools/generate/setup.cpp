#include "tools/generate/setup.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cstdio>
#include <set>

#include "framework/checkpoint/load/fp32.h"
#include "framework/config/command_line.h"
#include "framework/config/require.h"
#include "framework/format/layout.h"
#include "framework/util/errors.h"
#include "framework/util/parse_number.h"
#include "tools/run_tool.h"

namespace anymesh {
namespace {

constexpr const char* kDescription =
    R"(Writes text from a checkpoint, token by token as it comes, on one process.

  generate --load checkpoints --prompts "In the beginning" --temperature 0.8

Weights alone, as zero_to_fp32 writes them, need their model's flags too, which are those of
pretrain_gpt. A checkpoint has its model's flags itself. The texts go to stdout.

)";

// Encodes token numbers as text, as Megatron's does: "15 7 300". No number ends a document.
class NullTokenizer final : public Tokenizer {
 public:
  explicit NullTokenizer(int32_t vocab_size) : vocab_size_(vocab_size) {}

  std::vector<int32_t> encode(std::string_view text) override {
    std::vector<int32_t> ids;
    for (size_t begin = 0, end = 0; begin < text.size(); begin = end + 1) {
      end = std::min(text.find(' ', begin), text.size());
      ids.push_back(parse_number<int32_t>(text.substr(begin, end - begin)).value_or(-1));
      require(ids.back() >= 0 && ids.back() < vocab_size_,
              "--prompts " + std::string(text) +
                  ": the NullTokenizer takes numbers below its vocabulary's " +
                  std::to_string(vocab_size_) + ", a space between them");
    }
    return ids;
  }
  std::string decode(std::span<const int32_t> ids) const override {
    std::string text;
    for (const int32_t id : ids) text.append(" ").append(std::to_string(id));
    return text;
  }
  int32_t vocab_size() const override { return vocab_size_; }
  int32_t eod() const override { return -1; }

 private:
  int32_t vocab_size_;
};

void add_generate_flags(FlagTable& table, GenerateFlags& flags) {
  table.group("Generation");
  table.add(
      "load", flags.load,
      "a checkpoint of any mesh and ZeRO stage: a folder with 'latest' or 'latest_universal', "
      "a tag or universal folder, or weights",
      "required");
  table.add("load-tag", flags.load_tag, "the checkpoint in --load", "the one of 'latest'");
  table.add("prompts", flags.prompts, "beginnings of texts, one text for each",
            "a text from <|endoftext|> or <s> on");
  table.add(
      "prepend-bos", flags.prepend_bos,
      "begin each prompt with the <s> of a SentencePiece model, which Llama's expect, or with "
      "<|endoftext|>");
  table.add("num-tokens-to-generate", flags.num_tokens,
            "tokens to add to each; <|endoftext|> or </s> ends it before");
  table.add("temperature", flags.sampling.temperature,
            "divides the logits; 0: always the likeliest token");
  table.add("top_k", flags.sampling.top_k, "draw among that many likeliest tokens; 0: all");
  table.add("top_p", flags.sampling.top_p,
            "draw among the fewest likeliest tokens that have this probability together; 0: all");
  table.add("seed", flags.sampling.seed, "of the draws: the same flags write the same text");
  table.add(
      "window", flags.window,
      "tokens that the model reads at a time; where a text reaches so many, the model goes on "
      "from the last half of them",
      "the --seq-length of its training");
  table.add("recompute", flags.recompute,
            "keep no keys and values: read the window again for each token");
  table.add("tokenizer-type", flags.tokenizer.type, "one of pretrain_gpt's; NullTokenizer: numbers",
            "the checkpoint's");
  table.add("vocab-file", flags.tokenizer.vocab_file, "vocab.json of the GPT2BPETokenizer",
            "the checkpoint's");
  table.add("merge-file", flags.tokenizer.merge_file, "merges.txt of the GPT2BPETokenizer",
            "the checkpoint's");
  table.add("tokenizer-model", flags.tokenizer.tokenizer_model,
            "model of the SentencePiece tokenizers", "the checkpoint's");
}

// Returns the checkpoint's model. Vocabulary and width must fit the checkpoint's table, so that
// nothing larger than the checkpoint is ever made.
GptConfig model_of(const CheckpointReader& checkpoint, const GenerateFlags& flags) {
  const std::string path = checkpoint.path.string();
  GptConfig gpt = flags.gpt;
  if (const Value args = args_of(checkpoint)) {
    require(flags.model_flag.empty(), "--" + flags.model_flag + ": " + path +
                                          " has the model's flags itself; drop them here");
    gpt = gpt_of_args(args);
  } else {
    try {
      validate(gpt);
    } catch (const UserError& error) {
      throw UserError(path + ": has no args, which define the model. With flags in their place: " +
                      error.what());
    }
  }
  const auto& names = checkpoint.names();
  const auto table = std::find_if(names.begin(), names.end(), [](const std::string& name) {
    return name.ends_with("word_embeddings.weight");
  });
  if (table == names.end())
    throw DamagedFile(path + ": has no word_embeddings.weight, so it is of no GPT of ours");
  const Shape shape = checkpoint.parameter(*table).shape;
  if (shape.size() != 2 || shape[1] != gpt.hidden_size || shape[0] < 1 || shape[0] > INT32_MAX)
    throw DamagedFile(path + ": " + *table + " is " + to_string(shape) +
                      ", expected [vocabulary, " + std::to_string(gpt.hidden_size) +
                      "], as --hidden-size says");
  if (static_cast<size_t>(gpt.num_layers) > names.size())
    throw DamagedFile(path + ": has too few parameters for " + std::to_string(gpt.num_layers) +
                      " layers");
  gpt.vocab_size = static_cast<int>(shape[0]);
  gpt.make_vocab_size_divisible_by = 1;
  return gpt;
}

std::unique_ptr<Tokenizer> open_tokenizer(const GenerateFlags& flags, GenerateSetup& setup) {
  const std::string path = setup.checkpoint.path.string();
  const int vocab_size = setup.gpt.vocab_size;
  const TokenizerChoice& given = flags.tokenizer;
  const TokenizerChoice choice = tokenizer_of(setup.checkpoint, given);
  require(!choice.type.empty(),
          path +
              ": does not say which tokenizer it is of, nor is there a tokenizer.model, or a "
              "vocab.json and a merges.txt, beside it; give --tokenizer-type");
  const bool numbers = choice.type == "NullTokenizer";
  require(!numbers || (given.vocab_file + given.merge_file + given.tokenizer_model).empty(),
          "--tokenizer-type NullTokenizer takes no files");
  auto tokenizer = numbers ? std::make_unique<NullTokenizer>(vocab_size)
                           : make_tokenizer(choice.type, choice.vocab_file, choice.merge_file,
                                            choice.tokenizer_model);
  if (choice.searched) setup.notes.push_back("found by the checkpoint: " + flags_of(choice));
  const std::string sizes = "--tokenizer-type " + choice.type + " has " +
                            std::to_string(tokenizer->vocab_size()) + " tokens, the model of " +
                            path + " " + std::to_string(vocab_size);
  require(tokenizer->vocab_size() <= vocab_size,
          sizes + "; give the tokenizer that it was trained with");
  if (tokenizer->vocab_size() < vocab_size)
    setup.notes.push_back(sizes +
                          "; those without a text, padding of the vocabulary, are left out");
  return tokenizer;
}

// Training data has no <s> unless its maker put it there, as Llama's did.
std::vector<Prompt> prompts_of(const GenerateFlags& flags, Tokenizer& tokenizer,
                               std::vector<std::string>& notes) {
  const int32_t bos = tokenizer.bos();
  require(bos >= 0 || !flags.prepend_bos,
          "--prepend-bos: the NullTokenizer has no such token; write its number into --prompts");
  require(bos >= 0 || !flags.prompts.empty(),
          "--prompts is needed: the NullTokenizer has no <|endoftext|>");
  const bool has_bos = bos != tokenizer.eod();
  if (has_bos && flags.prompts.empty())
    notes.push_back(
        "the text begins behind <s>, which a model knows whose training data has it, as Llama's or "
        "by preprocess_data --prepend-bos");
  if (has_bos && !flags.prompts.empty() && !flags.prepend_bos)
    notes.push_back(
        "prompts are not given the <s> that models expect whose training data has it, as Llama's "
        "do; --prepend-bos gives it");
  if (flags.prompts.empty()) return {Prompt{.ids = {bos}}};
  std::vector<Prompt> prompts;
  for (const std::string& text : flags.prompts) {
    Prompt& prompt = prompts.emplace_back(Prompt{text, tokenizer.encode(text)});
    if (flags.prepend_bos) prompt.ids.insert(prompt.ids.begin(), bos);
    require(!prompt.ids.empty(), "--prompts: one is empty; leave the flag out instead");
  }
  return prompts;
}

// Sets the window, and gives the model as many positions as the longest text needs.
void fit_positions(const GenerateFlags& flags, GenerateSetup& setup) {
  int64_t longest = 0;
  for (const Prompt& prompt : setup.prompts) longest = std::max(longest, std::ssize(prompt.ids));
  longest += flags.num_tokens;
  GptConfig& gpt = setup.gpt;
  setup.window = flags.window > 0 ? flags.window : gpt.seq_length;
  require(
      !gpt.learned_positions() || setup.window <= gpt.max_position_embeddings,
      c10::str(with("--window", setup.window), ": the model has a learned vector for each of ",
               gpt.max_position_embeddings,
               " positions (--max-position-embeddings), and none beyond; give at most so many"));
  if (longest > setup.window)
    setup.notes.push_back(c10::str("texts of up to ", longest, " tokens, where the model reads ",
                                   setup.window, " at a time (--window): it forgets beginnings"));
  const auto needed = static_cast<int>(std::min<int64_t>(longest, setup.window));
  if (needed > gpt.seq_length)
    setup.notes.push_back(c10::str("texts of up to ", needed, " tokens; the model was trained on ",
                                   gpt.seq_length,
                                   " (--seq-length) and may lose the thread beyond"));
  gpt.seq_length = needed;
  gpt.max_position_embeddings = std::max(gpt.max_position_embeddings, needed);
}

}  // namespace

GenerateFlags parse_generate_flags(const std::vector<std::string>& args) {
  GenerateFlags flags;
  FlagTable table("generate", kDescription);
  add_generate_flags(table, flags);
  if (const std::string text = text_asked_for(table, args); !text.empty())
    end_with("generate", text);
  const size_t own = table.flags().size();
  add_flags(table, flags.gpt);
  flags.ignored = read_command_line(table, args);
  for (size_t i = own; i < table.flags().size() && flags.model_flag.empty(); ++i)
    if (table.given(table.flags()[i].name)) flags.model_flag = table.flags()[i].name;
  require(!flags.load.empty(), (args.empty() ? std::string("got no flags.\n") + kDescription : "") +
                                   "--load is required: a checkpoint's folder");
  require(flags.window >= 1 || !table.given("window"),
          with("--window", flags.window) + " must be at least 1");
  require(flags.num_tokens >= 1,
          with("--num-tokens-to-generate", flags.num_tokens) + " must be at least 1");
  validate(flags.sampling);
  return flags;
}

GenerateSetup set_up(const GenerateFlags& flags) {
  const std::filesystem::path path = flags.load;
  GenerateSetup setup{.checkpoint = open_checkpoint(
                          flags.load_tag.empty() ? path : path / flags.load_tag, /*threads=*/4)};
  for (const std::string& flag : flags.ignored)
    setup.notes.push_back("ignored, as it changes no result here: " + flag);
  setup.gpt = model_of(setup.checkpoint, flags);
  setup.tokenizer = open_tokenizer(flags, setup);
  setup.prompts = prompts_of(flags, *setup.tokenizer, setup.notes);
  fit_positions(flags, setup);
  setup.gpt = resolved(setup.gpt);
  return setup;
}

void load_weights(GptModel& model, const ProcessGrid& grid, const GenerateSetup& setup) {
  const CheckpointReader& checkpoint = setup.checkpoint;
  std::set<std::string> left;
  for (const std::string& name : checkpoint.names()) left.insert(checkpoint.first_name(name));
  for (const ParamSpec& spec : model.params())
    for (const std::string& name : {spec.name, spec.other_name})
      if (checkpoint.contains(name)) left.erase(checkpoint.first_name(name));
  if (!left.empty())
    throw DamagedFile(checkpoint.path.string() + ": has " + *left.begin() +
                      ", which such a model does not have (see the model's flags)");
  load_state_dict_from_zero_checkpoint(model, grid, checkpoint);
}

}  // namespace anymesh
