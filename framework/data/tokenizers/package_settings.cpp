#include "framework/data/tokenizers/package_settings.h"

#include <algorithm>
#include <map>

#include "framework/util/parse_number.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;

// The names that all classes of transformers know, in its order.
constexpr const char* kNames[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                  "pad_token", "cls_token", "mask_token"};
constexpr const char* kExtra = "extra_special_tokens";
constexpr const char* kOldExtra = "additional_special_tokens";

std::vector<JsonNode> list_of(const JsonNode& node) {
  return node.is_null() || node.is_object() ? std::vector<JsonNode>() : node.list();
}

}  // namespace

AddedToken read_added_token(const JsonNode& node, bool special) {
  if (node.is_text()) return {.content = node.text(), .special = true};
  special |= node.at("special").flag_or(false);
  return {.content = node.at("content").text(),
          .single_word = node.at("single_word").flag_or(false),
          .lstrip = node.at("lstrip").flag_or(false),
          .rstrip = node.at("rstrip").flag_or(false),
          .normalized = node.at("normalized").flag_or(!special),
          .special = special};
}

const std::string& content_of(const JsonNode& token) {
  return (token.is_object() ? token.at("content") : token).text();
}

PackageSettings::File::File(const fs::path& folder, const char* name)
    : File(folder / name, !folder.empty() && fs::is_regular_file(folder / name)
                              ? read_file(folder / name)
                              : "{}") {}

PackageSettings::PackageSettings(const fs::path& folder)
    : config_(folder, "tokenizer_config.json"),
      added_(folder, "added_tokens.json"),
      special_(folder, "special_tokens_map.json"),
      generation_(folder, "generation_config.json"),
      legacy_(config_.at(kNumbered).is_null()) {}

JsonNode PackageSettings::token(const char* name) const {
  const JsonNode node = value(name);
  return node.is_null() ? special_.at(name) : node;
}

JsonNode PackageSettings::value(const char* name) const {
  const JsonNode later = special_.at(name);
  return legacy_ && !later.is_null() ? later : config_.at(name);
}

// Names of a class's own come in two groups: texts in the config, and dictionaries of
// extra_special_tokens, go behind others, but before them where a name is the same.
std::vector<JsonNode> PackageSettings::named_tokens() const {
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
  for (const File* file : {&config_, &special_}) {
    if (file == &special_ && !legacy_) break;
    for (const auto& [name, ignored] : file->ordered.items()) {
      if (!name.ends_with("_token") || std::ranges::find(kNames, name) != std::end(kNames))
        continue;
      const JsonNode token = file->at(name.c_str());
      if (token.is_text() || (token.is_object() && token.at("content").is_text()))
        set(file == &config_ && token.is_text(), name, token);
    }
    if (const JsonNode extra = file->at(kExtra); extra.is_object())
      for (const auto& [name, ignored] : file->ordered[kExtra].items())
        set(1, name, extra.at(name));
  }
  for (auto& [name, token] : own[1]) set(0, name, token);
  for (const auto& [name, token] : own[0]) tokens.push_back(token);
  return tokens;
}

// A list that special_tokens_map.json alone has comes `late`.
std::vector<JsonNode> PackageSettings::extra_tokens(bool late) const {
  const JsonNode own = config_.at(kExtra), old = config_.at(kOldExtra), more = special_.at(kExtra),
                 later = special_.at(kOldExtra);
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

// Returns the names that make a token of added_tokens.json special: not those with a "__type".
std::set<std::string> PackageSettings::names_of_special() const {
  std::vector<JsonNode> tokens = extra_tokens(/*late=*/false);
  for (const char* name : kNames)
    if (const JsonNode token = value(name); !token.is_null()) tokens.push_back(token);
  std::set<std::string> names;
  for (const JsonNode& token : tokens)
    if (token.is_text() || token.at("__type").is_null()) names.insert(content_of(token));
  return names;
}

PackageSettings::Tokens PackageSettings::tokens(const JsonNode& tokenizer) const {
  const std::vector<JsonNode> named = named_tokens();
  std::multimap<int64_t, std::pair<JsonNode, AddedToken>> by_id;
  const auto is_named = [&](const std::string& content) {
    return std::ranges::find(named, content, content_of) != named.end();
  };
  const auto set = [&](int64_t id, const JsonNode& token) {
    by_id.emplace(id, std::pair(token, read_added_token(token, is_named(content_of(token)))));
  };
  const JsonNode numbered = config_.at(kNumbered), added = added_.json.root();
  for (const auto& [key, ignored] : numbered.json().items()) {
    const auto id = parse_number<int64_t>(key);
    if (!id) numbered.at(key).fail("has no number for an id");
    set(*id, numbered.at(key));
  }
  if (legacy_)
    for (const JsonNode& token : list_of(tokenizer.at("added_tokens")))
      set(token.at("id").integer(0, INT64_MAX), token);
  const std::set<std::string> special = names_of_special();
  for (const auto& [content, ignored] : added.json().items()) {
    const int64_t id = added.at(content).integer(0, INT64_MAX);
    const bool is = special.contains(content);
    if (legacy_ && !by_id.contains(id))
      by_id.emplace(id,
                    std::pair(added.at(content), AddedToken{.content = content,
                                                            .normalized = !is,
                                                            .special = is || is_named(content)}));
  }
  Tokens tokens;
  for (auto& [id, token] : by_id) tokens.numbered.push_back(std::move(token));
  for (const JsonNode& token : named) tokens.others.emplace_back(token, true);
  for (const JsonNode& token : extra_tokens(/*late=*/true))
    tokens.others.emplace_back(token, token.is_object() && token.at("special").is_null());
  return tokens;
}
}  // namespace anymesh
