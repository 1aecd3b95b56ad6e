#include <nlohmann/json.hpp>
#include <optional>

#include "framework/checkpoint/format/shallow_json.h"
#include "framework/data/tokenizer.h"
#include "framework/input_file.h"
#include "framework/parse_number.h"
#include "tools/hf_config.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

// An object, empty where there is none to read: what a file does not say another may.
Json read_object(const fs::path& file) {
  if (!fs::is_regular_file(file)) return Json::object();
  Json json = Json::parse(shallow(read_file(file)), nullptr, /*allow_exceptions=*/false);
  return json.is_object() ? json : Json::object();
}

Json find(const Json& object, const std::string& key) {
  return object.is_object() && object.contains(key) ? object[key] : Json();
}

// A tokenizer as transformers stores it, in one or several of these files.
struct Package {
  Json config, special, tokenizer, vocab, added, pieces, decoder;

  explicit Package(const fs::path& folder)
      : config(read_object(folder / "tokenizer_config.json")),
        special(read_object(folder / "special_tokens_map.json")),
        tokenizer(read_object(folder / "tokenizer.json")),
        vocab(read_object(folder / "vocab.json")),
        added(read_object(folder / "added_tokens.json")),
        pieces(find(find(tokenizer, "model"), "vocab")),
        decoder(find(config, "added_tokens_decoder")) {}

  // Of "eos_token", say: the text, or an object that has it.
  std::string text_of(const std::string& token) const {
    for (const Json* file : {&config, &special}) {
      const Json value = find(*file, token), content = find(value, "content");
      if (value.is_string()) return value;
      if (content.is_string()) return content;
    }
    return token == "pad_token" ? "" : "<|endoftext|>";  // GPT-2's package does not say
  }

  std::optional<int64_t> id_of(const std::string& text) const {
    for (const Json& token : find(tokenizer, "added_tokens"))
      if (find(token, "content") == text && find(token, "id").is_number_integer())
        return token["id"].get<int64_t>();
    for (const Json* map : {&added, &vocab, &pieces})
      if (const Json id = find(*map, text); id.is_number_integer()) return id.get<int64_t>();
    for (const auto& [id, token] : decoder.items())
      if (find(token, "content") == text) return parse_number<int64_t>(id);
    return {};
  }
};

}  // namespace

TokenIds token_ids_beside(const fs::path& folder) {
  TokenIds ids;
  const Json generation = read_object(folder / "generation_config.json");
  const Package package(folder);
  for (const std::string key : kTokenIds) {
    const Json value = find(generation, key);
    if (value.is_number_integer()) ids[key] = {value.get<int64_t>()};
    if (value.is_array()) ids[key] = value.get<std::vector<int64_t>>();
    if (ids.contains(key)) continue;
    const std::string text = package.text_of(key.substr(0, key.size() - std::string("_id").size()));
    if (const auto id = package.id_of(text)) ids[key] = {*id};
  }
  const fs::path model = folder / "tokenizer.model";
  if (!ids.contains("eos_token_id") && fs::is_regular_file(model)) try {
      const auto tokenizer = make_tokenizer("GPTSentencePieceTokenizer", "", "", model);
      ids.insert({{"eos_token_id", {tokenizer->eod()}}, {"bos_token_id", {tokenizer->bos()}}});
    } catch (const std::runtime_error&) {  // tiktoken's, say
    }
  return ids;
}

}  // namespace anymesh
