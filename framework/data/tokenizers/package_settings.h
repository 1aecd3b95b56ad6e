#pragma once

#include <filesystem>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "framework/data/tokenizers/json_node.h"

namespace anymesh {

// A token that is found in the text itself, before the model sees it: <|endoftext|>, say.
struct AddedToken {
  std::string content;
  int32_t id = 0;
  bool single_word = false;      // not beside a word character
  bool lstrip = false;           // takes the white space before it too
  bool rstrip = false;           // and that behind it
  bool normalized = false;       // is looked for in the normalized text
  bool special = false;          // is text like any other if special tokens are split
  std::string normal = content;  // what is looked for
};

// Reads a token: a text, which is special, or an object with a "content" and flags. `special` says
// that it is, whatever its flag.
AddedToken read_added_token(const JsonNode& node, bool special = false);
// Returns the text of such a token.
const std::string& content_of(const JsonNode& token);

// The files beside a tokenizer.json, as AutoTokenizer of transformers 5 reads them. An empty folder
// has none.
//
//   tokenizer_config.json   added_tokens_decoder, names of special tokens ("pad_token", and any
//                           other "..._token"), extra_special_tokens, split_special_tokens
//   added_tokens.json, special_tokens_map.json
//                           of older versions: read if there is no added_tokens_decoder. A name in
//                           the second goes before tokenizer_config.json's
//   generation_config.json  eos_token_id, bos_token_id
//
// Needs no library but JSON's, so that hf_convert counts tokens as the tokenizer does. Nodes live
// as long as the object. Throws DamagedFile for a file of another form.
class PackageSettings {
 public:
  static constexpr const char* kNumbered = "added_tokens_decoder";  // by id

  explicit PackageSettings(const std::filesystem::path& folder);

  // Return an entry of tokenizer_config.json and of generation_config.json; null: there is none.
  JsonNode config(const char* key) const { return config_.at(key); }
  JsonNode generation(const char* key) const { return generation_.at(key); }
  // Returns the token that is called "eos_token", say; null if none is. special_tokens_map.json may
  // name it too where it adds none.
  JsonNode token(const char* name) const;

  // The tokens that they add to those of a tokenizer, in transformers' order: first those that come
  // with an id, which counts for their order alone.
  struct Tokens {
    std::vector<std::pair<JsonNode, AddedToken>> numbered;
    std::vector<std::pair<JsonNode, bool>> others;  // and whether they are special in any case
  };
  Tokens tokens(const JsonNode& tokenizer) const;

 private:
  // An empty object if the file is not there. JsonFile sorts keys; `ordered` has their order.
  struct File {
    File(const std::filesystem::path& folder, const char* name);
    File(const std::filesystem::path& file, const std::string& text)
        : json(file, text), ordered(nlohmann::ordered_json::parse(text)) {
      if (!ordered.is_object()) json.root().expected("an object");
    }
    JsonNode at(const char* key) const { return json.root().at(key); }

    JsonFile json;
    nlohmann::ordered_json ordered;
  };

  JsonNode value(const char* name) const;
  std::vector<JsonNode> named_tokens() const;
  std::vector<JsonNode> extra_tokens(bool late) const;
  std::set<std::string> names_of_special() const;

  File config_, added_, special_, generation_;
  bool legacy_;  // without added_tokens_decoder
};

}  // namespace anymesh
