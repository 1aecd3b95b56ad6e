#include "framework/data/tokenizers/package_settings.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace anymesh {
namespace {

namespace fs = std::filesystem;

// Returns an empty object for a file that is not there.
JsonFile open_settings(const fs::path& folder, const char* name) {
  const fs::path file = folder / name;
  return !folder.empty() && fs::is_regular_file(file) ? JsonFile(file) : JsonFile(file, "{}");
}

// The files beside a tokenizer.json.
class PackageSettings {
 public:
  PackageSettings(const fs::path& folder, const Vocabulary& vocabulary)
      : config_(open_settings(folder, "tokenizer_config.json")),
        special_(open_settings(folder, "special_tokens_map.json")),
        generation_(open_settings(folder, "generation_config.json")),
        vocabulary_(vocabulary) {}

  // Returns the id of "eos_token", say, which is a text or an object with one.
  std::optional<int32_t> token(const std::string& name) const {
    for (const JsonFile* file : {&config_, &special_}) {
      const JsonNode node = file->root().at(name);
      if (node.is_null()) continue;
      const JsonNode text = node.is_object() ? node.at("content") : node;
      const auto id = vocabulary_.find(text.text());
      if (!id) text.fail("is " + printable(text.text()) + ", which is no token of the tokenizer");
      return id;
    }
    return {};
  }

  // Returns "eos_token_id", say: null, an id or a list of ids. Ids beyond the vocabulary belong to
  // the model alone.
  std::vector<int32_t> ids(const std::string& name) const {
    const JsonNode node = generation_.root().at(name);
    std::vector<int32_t> ids;
    const auto add = [&](const JsonNode& id) {
      const auto value = static_cast<int32_t>(id.integer(0, INT32_MAX));
      if (vocabulary_.contains(value)) ids.push_back(value);
    };
    if (node.is_list())
      for (const JsonNode& each : node.list()) add(each);
    else if (!node.is_null())
      add(node);
    return ids;
  }

 private:
  JsonFile config_, special_, generation_;
  const Vocabulary& vocabulary_;
};

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

}  // namespace

void set_special_tokens(const JsonNode& tokenizer, const AroundText& around, const fs::path& folder,
                        TokenizerParts& parts) {
  for (const auto* ids : {&around.before, &around.behind})
    for (const int32_t id : *ids)
      if (!parts.vocabulary.contains(id))
        tokenizer.at("post_processor").fail("has the id " + std::to_string(id) + " of no token");
  const PackageSettings settings(folder, parts.vocabulary);
  const std::vector<int32_t> ends = settings.ids("eos_token_id");

  std::optional<int32_t> eod = settings.token("eos_token");
  if (!eod) eod = first_of(ends);
  if (!eod && !around.behind.empty()) eod = around.behind.back();
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
      around.before.size() == 1 ? first_of(around.before) : settings.token("bos_token");
  if (!bos) bos = first_of(settings.ids("bos_token_id"));
  parts.bos = bos.value_or(parts.eod);
  parts.begins_with_bos = around.before.size() == 1;
}

}  // namespace anymesh
