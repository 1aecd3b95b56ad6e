#include <algorithm>
#include <filesystem>
#include <utility>

#include "framework/data/json_line.h"
#include "framework/data/tokenizers/pipeline_tokenizer.h"
#include "framework/data/tokenizers/tokenizer.h"
#include "framework/data/tokenizers/tokenizer_files.h"

namespace anymesh {
namespace {

// Classes that make their ByteLevel pre-tokenizer by add_prefix_space, which is false unless given.
constexpr const char* kPrefixClasses[] = {
    "GPT2Tokenizer",    "GPTNeoXTokenizer", "CodeGenTokenizer",
    "Qwen2Tokenizer",   "Qwen3_5Tokenizer", "CohereTokenizer",
    "RobertaTokenizer", "BartTokenizer",    "WhisperTokenizer"};

int32_t read_id(const JsonNode& node) {
  return static_cast<int32_t>(node.integer(0, Vocabulary::kMostIds));
}

AroundText read_template(const JsonNode& node) {
  AroundText around;
  bool behind = false;
  for (const JsonNode& part : node.at("single").list()) {
    const JsonNode special = part.at("SpecialToken");
    if (special.is_null()) {
      if (behind || part.at("Sequence").is_null() || part.at("Sequence").at("id").text() != "A")
        part.expected("a SpecialToken, or the Sequence A once");
      behind = true;
      continue;
    }
    const JsonNode ids = node.at("special_tokens").at(special.at("id").text()).at("ids");
    for (const JsonNode& id : ids.list())
      (behind ? around.behind : around.before).push_back(read_id(id));
  }
  if (!behind) node.at("single").expected("the Sequence A among its parts");
  return around;
}

int32_t read_token_and_id(const JsonNode& node) {
  if (node.list_size() != 2) node.expected("a token and its id");
  return read_id(node.at(size_t{1}));
}

// Reads what the "post_processor" puts around one text.
AroundText read_post_processor(const JsonNode& node) {
  if (node.is_null()) return {};
  const std::string& type = node.at("type").text();
  if (type == "ByteLevel") return {};
  if (type == "TemplateProcessing") return read_template(node);
  if (type == "BertProcessing" || type == "RobertaProcessing")
    return {{read_token_and_id(node.at("cls"))}, {read_token_and_id(node.at("sep"))}};
  if (type == "Sequence") {
    AroundText all;
    for (const JsonNode& part : node.at("processors").list()) {
      const bool added = !all.before.empty() || !all.behind.empty();
      if (added && part.at("type").text() != "ByteLevel")
        part.refuse("comes behind another that adds tokens, which is not supported");
      if (!added) all = read_post_processor(part);
    }
    return all;
  }
  node.at("type").refuse("is " + printable(type) + ", a post-processor that is not supported");
}

// Returns the text of an object's member. Returns none where there is none, or no JSON.
std::string_view member_text(std::string_view object, std::string_view name) try {
  std::string_view found;
  for (const auto& [key, value] : members_of(object))
    if (key == name) found = value;
  return found;
} catch (const UserError&) {
  return {};
}

// Returns whether ByteLevel pre-tokenizers add a space, whatever the tokenizer.json says; none if
// the class in tokenizer_config.json does not decide on that.
std::optional<bool> prefix_space_of_class(const PackageSettings& settings) {
  const JsonNode name = settings.config("tokenizer_class");
  std::string type = name.is_text() ? name.text() : "";
  if (type.ends_with("Fast")) type.resize(type.size() - 4);
  if (std::ranges::find(kPrefixClasses, type) == std::end(kPrefixClasses)) return {};
  return settings.config("add_prefix_space").flag_or(false);
}

// Adds the tokens that the tokenizer lacks.
void add_tokens(const PackageSettings& settings, const JsonNode& tokenizer, TokenizerParts& parts) {
  const auto add = [&](const JsonNode& origin, AddedToken token) {
    if (!token.content.empty())
      parts.added_tokens.add(std::move(token), origin, parts.normalizer, parts.vocabulary);
  };
  const PackageSettings::Tokens tokens = settings.tokens(tokenizer);
  for (const auto& [origin, token] : tokens.numbered) add(origin, token);
  const size_t known = parts.added_tokens.all().size();
  for (const auto& [token, special] : tokens.others)
    if (parts.added_tokens.find(content_of(token)) >= known)
      add(token, read_added_token(token, special));
  if (settings.config("split_special_tokens").flag_or(false)) parts.added_tokens.split_special();
}

std::optional<int32_t> id_of_token(const PackageSettings& settings, const char* name,
                                   const Vocabulary& vocabulary) {
  const JsonNode token = settings.token(name);
  return token.is_null() ? std::nullopt : vocabulary.find(content_of(token));
}

// Returns "eos_token_id", say: null, an id or a list of ids. Ids beyond the vocabulary belong to
// the model alone.
std::vector<int32_t> generation_ids(const PackageSettings& settings, const char* name,
                                    const Vocabulary& vocabulary) {
  const JsonNode node = settings.generation(name);
  std::vector<int32_t> ids;
  if (node.is_null()) return ids;
  for (const JsonNode& id : node.is_list() ? node.list() : std::vector{node}) {
    const auto value = static_cast<int32_t>(id.integer(0, INT32_MAX));
    if (vocabulary.contains(value)) ids.push_back(value);
  }
  return ids;
}

std::optional<int32_t> usual_end(const AddedTokens& tokens) {
  for (const char* name :
       {"<|endoftext|>", "</s>", "<|end_of_text|>", "<eos>", "<｜end▁of▁sentence｜>"})
    for (const AddedToken& token : tokens.all())
      if (token.content == name) return token.id;
  return {};
}

std::optional<int32_t> first_of(const std::vector<int32_t>& ids) {
  return ids.empty() ? std::nullopt : std::optional(ids.front());
}

// Sets what tokenizer.h lists, also by `parts.around`. Throws a UserError if nothing says which
// token ends a document.
void set_ends(const PackageSettings& settings, const JsonNode& tokenizer, TokenizerParts& parts) {
  const auto& [before, behind] = parts.around;
  for (const auto* ids : {&before, &behind})
    for (const int32_t id : *ids)
      if (!parts.vocabulary.contains(id))
        tokenizer.at("post_processor").fail("has the id " + std::to_string(id) + " of no token");
  const std::vector<int32_t> ends = generation_ids(settings, "eos_token_id", parts.vocabulary);

  std::optional<int32_t> eod = id_of_token(settings, "eos_token", parts.vocabulary);
  if (!eod) eod = first_of(ends);
  if (!eod && !behind.empty()) eod = behind.back();
  if (!eod) eod = usual_end(parts.added_tokens);
  if (!eod)
    throw_error(tokenizer.file(),
                ": nothing says which token ends a document: name an eos_token in a "
                "tokenizer_config.json beside it");
  parts.eod = *eod;
  parts.text_ends = {*eod};
  for (const int32_t id : ends)
    if (std::ranges::find(parts.text_ends, id) == parts.text_ends.end())
      parts.text_ends.push_back(id);

  std::optional<int32_t> bos =
      before.size() == 1 ? first_of(before) : id_of_token(settings, "bos_token", parts.vocabulary);
  if (!bos) bos = first_of(generation_ids(settings, "bos_token_id", parts.vocabulary));
  parts.bos = bos.value_or(parts.eod);
}

}  // namespace

std::unique_ptr<Tokenizer> make_huggingface_tokenizer(const std::string& folder_or_file) {
  namespace fs = std::filesystem;
  const fs::path path = folder_or_file;
  const fs::path file = fs::is_directory(path) ? path / "tokenizer.json" : path;
  const std::string text = read_tokenizer_file(file.string(), TokenizerFile::kTokenizerJson);
  std::string_view vocab = member_text(member_text(text, "model"), "vocab");
  std::string rest = text;
  if (vocab.starts_with('{'))
    rest.replace(static_cast<size_t>(vocab.data() - text.data()), vocab.size(), "{}");
  const JsonFile json(file, std::move(rest));
  const JsonNode root = json.root();
  const fs::path folder =
      file.filename() == "tokenizer.json" ? fs::absolute(file).parent_path() : "";
  const PackageSettings settings(folder);

  auto parts = std::make_unique<TokenizerParts>();
  parts->normalizer = read_normalizer(root.at("normalizer"));
  PreTokenizers pre_tokenizers =
      read_pre_tokenizers(root.at("pre_tokenizer"), prefix_space_of_class(settings));
  parts->pre_tokenizers = std::move(pre_tokenizers.steps);
  parts->model = read_token_model(root.at("model"), vocab, pre_tokenizers.bytes, parts->vocabulary);
  parts->added_tokens =
      read_added_tokens(root.at("added_tokens"), parts->normalizer, parts->vocabulary);
  parts->decoder = read_decoder(root.at("decoder"));
  parts->around = read_post_processor(root.at("post_processor"));
  add_tokens(settings, root, *parts);
  set_ends(settings, root, *parts);
  return make_pipeline_tokenizer(std::move(parts));
}

}  // namespace anymesh
