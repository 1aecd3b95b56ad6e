#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "framework/data/json_line.h"
#include "framework/data/tokenizers/pipeline_tokenizer.h"
#include "framework/util/parse_number.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;

// The names that all classes of transformers know, in its order.
constexpr const char* kNames[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                  "pad_token", "cls_token", "mask_token"};
constexpr const char* kExtra = "extra_special_tokens";
constexpr const char* kOldExtra = "additional_special_tokens";
constexpr const char* kNumbered = "added_tokens_decoder";

// Classes that make their ByteLevel pre-tokenizer by add_prefix_space, which is false unless given.
constexpr const char* kPrefixClasses[] = {
    "GPT2Tokenizer",    "GPTNeoXTokenizer", "CodeGenTokenizer",
    "Qwen2Tokenizer",   "Qwen3_5Tokenizer", "CohereTokenizer",
    "RobertaTokenizer", "BartTokenizer",    "WhisperTokenizer"};

// An empty object if the file is not there. JsonFile sorts keys; the text has their order.
struct SettingsFile {
  SettingsFile(const fs::path& folder, const char* name)
      : text(!folder.empty() && fs::is_regular_file(folder / name) ? read_file(folder / name)
                                                                   : "{}"),
        json(folder / name, text) {}
  JsonNode at(const char* key) const { return json.root().at(key); }

  std::string text;
  JsonFile json;
};

// Returns the keys of an object, or of the object that it has as a member, in order.
std::vector<std::string> keys_of(std::string_view object, std::string_view member = {}) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : members_of(object)) {
    if (member.empty()) keys.push_back(key);
    if (key == member) keys = keys_of(value);
  }
  return keys;
}

// Returns the text of a token that is a text or an object with one.
const std::string& content_of(const JsonNode& token) {
  return (token.is_object() ? token.at("content") : token).text();
}

std::vector<JsonNode> list_of(const JsonNode& node) {
  return node.is_null() || node.is_object() ? std::vector<JsonNode>() : node.list();
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

class PackageSettings {
 public:
  PackageSettings(const fs::path& folder, const JsonNode& tokenizer, TokenizerParts& parts)
      : config_(folder, "tokenizer_config.json"),
        added_(folder, "added_tokens.json"),
        special_(folder, "special_tokens_map.json"),
        generation_(folder, "generation_config.json"),
        legacy_(config_.at(kNumbered).is_null()),
        tokenizer_(tokenizer),
        parts_(parts) {}

  void add_tokens() const {
    const std::vector<JsonNode> named = named_tokens();
    add_numbered_tokens(named);
    const size_t known = parts_.added_tokens.all().size();
    const auto add_new = [&](const JsonNode& token, bool special) {
      if (parts_.added_tokens.find(content_of(token)) >= known)
        add(token, read_added_token(token, special));
    };
    for (const JsonNode& token : named) add_new(token, true);
    for (const JsonNode& token : extra_tokens(/*late=*/true))
      add_new(token, token.is_object() && token.at("special").is_null());
    if (config_.at("split_special_tokens").flag_or(false)) parts_.added_tokens.split_special();
  }

  // Returns the id of "eos_token", say. special_tokens_map.json may name it too where it adds none.
  std::optional<int32_t> token(const char* name) const {
    JsonNode node = value(name);
    if (node.is_null()) node = special_.at(name);
    return node.is_null() ? std::nullopt : parts_.vocabulary.find(content_of(node));
  }

  // Returns "eos_token_id", say: null, an id or a list of ids. Ids beyond the vocabulary belong to
  // the model alone.
  std::vector<int32_t> ids(const char* name) const {
    const JsonNode node = generation_.at(name);
    std::vector<int32_t> ids;
    for (const JsonNode& id :
         node.is_list() || node.is_null() ? list_of(node) : std::vector{node}) {
      const auto value = static_cast<int32_t>(id.integer(0, INT32_MAX));
      if (parts_.vocabulary.contains(value)) ids.push_back(value);
    }
    return ids;
  }

 private:
  void add(const JsonNode& origin, AddedToken token) const {
    if (!token.content.empty())
      parts_.added_tokens.add(std::move(token), origin, parts_.normalizer, parts_.vocabulary);
  }

  JsonNode value(const char* name) const {
    const JsonNode later = special_.at(name);
    return legacy_ && !later.is_null() ? later : config_.at(name);
  }

  // Names of a class's own come in two groups: texts in the config, and dictionaries of
  // extra_special_tokens, go behind others, but before them where a name is the same.
  std::vector<JsonNode> named_tokens() const {
    std::vector<JsonNode> tokens;
    for (const char* name : kNames)
      if (const JsonNode token = value(name); !token.is_null()) tokens.push_back(token);
    std::vector<std::pair<std::string, JsonNode>> own[2];
    const auto set = [&](int group, const std::string& name, const JsonNode& token) {
      const auto known =
          std::ranges::find(own[group], name, &std::pair<std::string, JsonNode>::first);
      if (known == own[group].end())
        own[group].emplace_back(name, token);
      else
        known->second = token;
    };
    for (const SettingsFile* file : {&config_, &special_}) {
      if (file == &special_ && !legacy_) break;
      for (const std::string& name : keys_of(file->text)) {
        if (!name.ends_with("_token") || std::ranges::find(kNames, name) != std::end(kNames))
          continue;
        const JsonNode token = file->at(name.c_str());
        if (token.is_text() || (token.is_object() && token.at("content").is_text()))
          set(file == &config_ && token.is_text(), name, token);
      }
      if (const JsonNode extra = file->at(kExtra); extra.is_object())
        for (const std::string& name : keys_of(file->text, kExtra)) set(1, name, extra.at(name));
    }
    for (auto& [name, token] : own[1]) set(0, name, token);
    for (const auto& [name, token] : own[0]) tokens.push_back(token);
    return tokens;
  }

  // A list that special_tokens_map.json alone has comes `late`.
  std::vector<JsonNode> extra_tokens(bool late) const {
    const JsonNode own = config_.at(kExtra), old = config_.at(kOldExtra),
                   more = special_.at(kExtra), later = special_.at(kOldExtra);
    const bool none = own.is_null() || own.json().empty();
    bool listed = own.is_list() || (none && !old.is_null());
    std::vector<JsonNode> tokens = list_of(listed && none && !old.is_null() ? old : own);
    if (legacy_ && more.is_list()) {
      listed = true;
      for (const JsonNode& token : more.list()) tokens.push_back(token);
    }
    if (listed || !late) return tokens;
    return list_of(legacy_ && !later.is_null() ? later : old);
  }

  // Adds the tokens that come with an id, which counts for their order alone.
  void add_numbered_tokens(const std::vector<JsonNode>& named) const {
    std::multimap<int64_t, std::pair<JsonNode, AddedToken>> tokens;
    const auto is_named = [&](const std::string& content) {
      return std::ranges::find(named, content, content_of) != named.end();
    };
    const auto set = [&](int64_t id, const JsonNode& token) {
      tokens.emplace(id, std::pair(token, read_added_token(token, is_named(content_of(token)))));
    };
    const JsonNode numbered = config_.at(kNumbered), added = added_.json.root();
    for (const auto& [key, ignored] : numbered.json().items()) {
      const auto id = parse_number<int64_t>(key);
      if (!id) numbered.at(key).fail("has no number for an id");
      set(*id, numbered.at(key));
    }
    if (legacy_)
      for (const JsonNode& token : list_of(tokenizer_.at("added_tokens")))
        set(token.at("id").integer(0, INT64_MAX), token);
    const std::set<std::string> special = names_of_special();
    for (const auto& [content, ignored] : added.json().items()) {
      const int64_t id = added.at(content).integer(0, INT64_MAX);
      const bool is = special.contains(content);
      if (legacy_ && !tokens.contains(id))
        tokens.emplace(
            id, std::pair(added.at(content), AddedToken{.content = content,
                                                        .normalized = !is,
                                                        .special = is || is_named(content)}));
    }
    for (auto& [id, token] : tokens) add(token.first, std::move(token.second));
  }

  // Returns the names that make a token of added_tokens.json special: not those with a "__type".
  std::set<std::string> names_of_special() const {
    std::vector<JsonNode> tokens = extra_tokens(/*late=*/false);
    for (const char* name : kNames)
      if (const JsonNode token = value(name); !token.is_null()) tokens.push_back(token);
    std::set<std::string> names;
    for (const JsonNode& token : tokens)
      if (token.is_text() || token.at("__type").is_null()) names.insert(content_of(token));
    return names;
  }

  SettingsFile config_, added_, special_, generation_;
  bool legacy_;  // without added_tokens_decoder
  const JsonNode& tokenizer_;
  TokenizerParts& parts_;
};

}  // namespace

std::optional<bool> prefix_space_of_class(const fs::path& folder) {
  const SettingsFile config(folder, "tokenizer_config.json");
  const JsonNode name = config.at("tokenizer_class");
  std::string type = name.is_text() ? name.text() : "";
  if (type.ends_with("Fast")) type.resize(type.size() - 4);
  if (std::ranges::find(kPrefixClasses, type) == std::end(kPrefixClasses)) return {};
  return config.at("add_prefix_space").flag_or(false);
}

void read_package_settings(const fs::path& folder, const JsonNode& tokenizer,
                           TokenizerParts& parts) {
  const PackageSettings settings(folder, tokenizer, parts);
  settings.add_tokens();
  const auto& [before, behind] = parts.around;
  for (const auto* ids : {&before, &behind})
    for (const int32_t id : *ids)
      if (!parts.vocabulary.contains(id))
        tokenizer.at("post_processor").fail("has the id " + std::to_string(id) + " of no token");
  const std::vector<int32_t> ends = settings.ids("eos_token_id");

  std::optional<int32_t> eod = settings.token("eos_token");
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

  std::optional<int32_t> bos = before.size() == 1 ? first_of(before) : settings.token("bos_token");
  if (!bos) bos = first_of(settings.ids("bos_token_id"));
  parts.bos = bos.value_or(parts.eod);
}

}  // namespace anymesh
