#include "tools/generate/setup.h"

#include <algorithm>
#include <cstdio>
#include <set>

#include "framework/checkpoint/load/fp32.h"
#include "framework/config/command_line.h"
#include "framework/config/require.h"
#include "framework/util/errors.h"
#include "framework/util/parse_number.h"
#include "framework/util/shell_word.h"
#include "tools/run_tool.h"

namespace anymesh {
namespace {

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
  table.add("pretrained-checkpoint", flags.pretrained_checkpoint,
            "the model that the adapter in --load was trained beside, if it was saved alone");
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
  table.add(
      "tokenizer-model", flags.tokenizer.tokenizer_model,
      "model of the SentencePiece tokenizers, tokenizer.json or its folder, or file of tiktoken",
      "the checkpoint's");
}

std::unique_ptr<Tokenizer> open_tokenizer(const GenerateFlags& flags, int vocab_size,
                                          TextSetup& setup) {
  const std::string path = setup.checkpoint.path.string();
  const TokenizerChoice& given = flags.tokenizer;
  const TokenizerChoice choice = tokenizer_of(setup.checkpoint, given);
  require(!choice.type.empty(),
          path +
              ": does not say which tokenizer it is of, nor is there a tokenizer.model, a "
              "tokenizer.json, or a vocab.json and a merges.txt, beside it; give --tokenizer-type");
  const bool numbers = choice.type == "NullTokenizer";
  require(!numbers || (given.vocab_file + given.merge_file + given.tokenizer_model).empty(),
          "--tokenizer-type NullTokenizer takes no files");
  auto tokenizer = numbers ? std::make_unique<NullTokenizer>(vocab_size)
                           : make_tokenizer(choice.type, choice.vocab_file, choice.merge_file,
                                            choice.tokenizer_model, choice.tiktoken);
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
  std::vector<int32_t> before = tokenizer.around_text().before;
  if (before.empty() && (flags.prepend_bos || flags.prompts.empty())) before = {bos};
  if (has_bos && before.empty())
    notes.push_back(
        "prompts are not given the <s> that models expect whose training data has it, as Llama's "
        "do; --prepend-bos gives it");
  if (flags.prompts.empty()) return {Prompt{.ids = before}};
  std::vector<Prompt> prompts;
  for (const std::string& text : flags.prompts) {
    Prompt& prompt = prompts.emplace_back(Prompt{text, tokenizer.encode(text)});
    prompt.ids.insert(prompt.ids.begin(), before.begin(), before.end());
    require(!prompt.ids.empty(), "--prompts: one is empty; leave the flag out instead");
  }
  return prompts;
}

}  // namespace

GenerateFlags parse_generate_flags(const std::string& program, const std::string& description,
                                   const std::vector<std::string>& args,
                                   const std::function<void(FlagTable&)>& add_model_flags) {
  GenerateFlags flags;
  FlagTable table(program, description);
  add_generate_flags(table, flags);
  if (const std::string text = text_asked_for(table, args); !text.empty()) end_with(program, text);
  const size_t own = table.flags().size();
  if (add_model_flags) add_model_flags(table);
  flags.ignored = read_command_line(table, args);
  for (size_t i = own; i < table.flags().size() && flags.model_flag.empty(); ++i)
    if (table.given(table.flags()[i].name)) flags.model_flag = table.flags()[i].name;
  require(!flags.load.empty(), (args.empty() ? "got no flags.\n" + description : "") +
                                   "--load is required: a checkpoint's folder");
  require(flags.window >= 1 || !table.given("window"),
          with("--window", flags.window) + " must be at least 1");
  require(flags.num_tokens >= 1,
          with("--num-tokens-to-generate", flags.num_tokens) + " must be at least 1");
  validate(flags.sampling);
  return flags;
}

void open_checkpoint(const GenerateFlags& flags, TextSetup& setup) {
  const std::filesystem::path path = flags.load;
  setup.checkpoint =
      open_checkpoint(flags.load_tag.empty() ? path : path / flags.load_tag, /*threads=*/4);
  const Value args = args_of(setup.checkpoint).value_or(Value::dict()),
              base = args.find("pretrained_checkpoint").value_or("");
  const bool alone = args.find("exclude_frozen_parameters").value_or(false).as_bool(),
             has_base = !flags.pretrained_checkpoint.empty();
  require(has_base || !alone, setup.checkpoint.path.string(),
          ": was saved without the model beside it (--exclude-frozen-parameters); give the model "
          "too: --pretrained-checkpoint ",
          base == Value("") ? "DIR" : shell_word(base.as_string()));
  require(alone || !has_base, setup.checkpoint.path.string(),
          ": has the whole model; leave out --pretrained-checkpoint");
  if (has_base) setup.base = open_checkpoint(flags.pretrained_checkpoint, /*threads=*/4);
  for (const std::string& flag : flags.ignored)
    setup.notes.push_back("ignored, as it changes no result here: " + flag);
}

void read_prompts(const GenerateFlags& flags, int vocab_size, TextSetup& setup) {
  setup.tokenizer = open_tokenizer(flags, vocab_size, setup);
  setup.prompts = prompts_of(flags, *setup.tokenizer, setup.notes);
}

void fit_window(const GenerateFlags& flags, int seq_length, TextSetup& setup) {
  for (const Prompt& prompt : setup.prompts)
    setup.longest = std::max(setup.longest, std::ssize(prompt.ids) + flags.num_tokens);
  setup.window = flags.window > 0 ? flags.window : seq_length;
  if (setup.longest > setup.window)
    setup.notes.push_back(c10::str("texts of up to ", setup.longest,
                                   " tokens, where the model reads ", setup.window,
                                   " at a time (--window): it forgets beginnings"));
  if (const auto needed = std::min<int64_t>(setup.longest, setup.window); needed > seq_length)
    setup.notes.push_back(c10::str("texts of up to ", needed, " tokens; the model was trained on ",
                                   seq_length, " (--seq-length) and may lose the thread beyond"));
}

void print_notes(const std::string& program, const TextSetup& setup) {
  for (const std::string& note : setup.notes)
    std::fprintf(stderr, "%s: note: %s\n", program.c_str(), printable_message(note).c_str());
}

void load_weights(StageModule& model, const ProcessGrid& grid, const TextSetup& setup) {
  const Checkpoint& checkpoint = setup.checkpoint;
  std::set<std::string> left;
  for (const std::string& name : checkpoint.names()) left.insert(checkpoint.first_name(name));
  for (const ParamSpec& spec : model.params())
    for (const std::string& name : {spec.name, spec.other_name})
      if (checkpoint.contains(name)) left.erase(checkpoint.first_name(name));
  if (!left.empty())
    throw DamagedFile(checkpoint.path.string() + ": has " + *left.begin() +
                      ", which such a model does not have (see the model's flags)");
  load_state_dict_from_zero_checkpoint(model, grid, checkpoint,
                                       setup.base ? &*setup.base : nullptr);
}

}  // namespace anymesh
