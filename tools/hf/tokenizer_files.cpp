#include "tools/hf/tokenizer_files.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>

#include "framework/format/io.h"
#include "framework/util/input_file.h"
#include "framework/util/json.h"
#include "framework/util/parse_number.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;

// Reads an object. Returns an empty one if it cannot, since another file may have the value.
nlohmann::json read_object(const fs::path& file) {
  if (!fs::is_regular_file(file)) return nlohmann::json::object();
  nlohmann::json json =
      nlohmann::json::parse(bounded(read_file(file), file), nullptr, /*allow_exceptions=*/false);
  return json.is_object() ? json : nlohmann::json::object();
}

// A tokenizer as transformers stores it, in one or several of these files.
struct Package {
  nlohmann::json config, special, tokenizer, vocab, added, pieces, decoder;

  explicit Package(const fs::path& folder)
      : config(read_object(folder / "tokenizer_config.json")),
        special(read_object(folder / "special_tokens_map.json")),
        tokenizer(read_object(folder / "tokenizer.json")),
        vocab(read_object(folder / "vocab.json")),
        added(read_object(folder / "added_tokens.json")),
        pieces(member(member(tokenizer, "model"), "vocab")),
        decoder(member(config, "added_tokens_decoder")) {}

  // Returns the text of "eos_token", say, stored as such or in an object.
  std::string text_of(const std::string& token) const {
    for (const nlohmann::json* file : {&config, &special}) {
      const nlohmann::json value = member(*file, token), content = member(value, "content");
      if (value.is_string()) return value;
      if (content.is_string()) return content;
    }
    return token == "pad_token" ? "" : "<|endoftext|>";  // GPT-2's package does not say
  }

  std::optional<int64_t> id_of(const std::string& text) const {
    for (const nlohmann::json& token : member(tokenizer, "added_tokens"))
      if (member(token, "content") == text && member(token, "id").is_number_integer())
        return token["id"].get<int64_t>();
    for (const nlohmann::json* map : {&added, &vocab, &pieces})
      if (const nlohmann::json id = member(*map, text); id.is_number_integer())
        return id.get<int64_t>();
    for (const auto& [id, token] : decoder.items())
      if (member(token, "content") == text) return parse_number<int64_t>(id);
    return {};
  }
};

// Calls see(number, integer, text) for the fields of a protobuf message. Strings and sub-messages
// have a text. Ends early where the bytes are no such message.
template <typename See>
void read_fields(std::string_view message, const See& see) {
  const auto varint = [&]() -> std::optional<uint64_t> {
    uint64_t value = 0;
    for (int shift = 0; shift < 64 && !message.empty(); shift += 7) {
      const auto byte = static_cast<unsigned char>(message.front());
      message.remove_prefix(1);
      value |= uint64_t{byte & 0x7FU} << shift;
      if (byte < 0x80) return value;
    }
    return {};
  };
  while (const auto tag = varint()) {
    const uint64_t wire_type = *tag & 7;
    const bool fixed = wire_type == 1 || wire_type == 5;
    const auto value = fixed ? std::optional<uint64_t>(wire_type == 1 ? 8 : 4) : varint();
    if (!value || wire_type > 5 || wire_type == 3 || wire_type == 4) return;
    const uint64_t size = wire_type == 0 ? 0 : *value;
    if (size > message.size()) return;
    if (!fixed) see(*tag >> 3, *value, message.substr(0, size));
    message.remove_prefix(size);
  }
}

// Finds the control pieces <s> and </s> of a SentencePiece model. Does without its library, because
// this program does not link it. Counterpart: ModelProto in sentencepiece_model.proto.
TokenIds sentencepiece_ids(const fs::path& file) {
  constexpr uint64_t kPieces = 1, kPiece = 1, kType = 3, kControl = 3;
  TokenIds ids;
  if (!fs::is_regular_file(file)) return ids;
  int64_t index = 0;
  const std::string model = read_file(file);
  read_fields(model, [&](uint64_t field, uint64_t, std::string_view message) {
    if (field != kPieces) return;
    std::string_view piece;
    uint64_t type = 0;
    read_fields(message, [&](uint64_t of, uint64_t value, std::string_view text) {
      if (of == kPiece) piece = text;
      if (of == kType) type = value;
    });
    if (type == kControl && piece == "<s>") ids["bos_token_id"] = {index};
    if (type == kControl && piece == "</s>") ids["eos_token_id"] = {index};
    ++index;
  });
  return ids;
}

}  // namespace

std::vector<std::string> tokenizer_files(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const char* name : kHfTokenizerFiles)
    if (std::filesystem::is_regular_file(folder / name)) names.emplace_back(name);
  return names;
}

TokenIds token_ids_beside(const fs::path& folder) {
  TokenIds ids;
  const nlohmann::json generation = read_object(folder / kHfGenerationFile);
  const Package package(folder);
  for (const std::string key : kTokenIds) {
    const nlohmann::json value = member(generation, key);
    if (value.is_number_integer()) ids[key] = {value.get<int64_t>()};
    if (value.is_array()) ids[key] = value.get<std::vector<int64_t>>();
    if (ids.contains(key)) continue;
    const std::string text = package.text_of(key.substr(0, key.size() - std::string("_id").size()));
    if (const auto id = package.id_of(text)) ids[key] = {*id};
  }
  if (!ids.contains("eos_token_id")) ids.merge(sentencepiece_ids(folder / "tokenizer.model"));
  return ids;
}

TokenIds token_ids_of_run(const TokenizerChoice& choice) {
  const auto both = [](int64_t id) {
    return TokenIds{{"bos_token_id", {id}}, {"eos_token_id", {id}}};
  };
  if (choice.type == "ByteLevelTokenizer") return both(256);
  if (choice.type == "TikTokenizer") return {{"bos_token_id", {1}}, {"eos_token_id", {2}}};
  if (choice.type.starts_with("H")) {  // HFTokenizer, HuggingFaceTokenizer
    const fs::path model = choice.tokenizer_model;
    return token_ids_beside(fs::is_directory(model) ? model : fs::absolute(model).parent_path());
  }
  if (choice.type == "GPTSentencePieceTokenizer" || choice.type == "Llama2Tokenizer")
    return sentencepiece_ids(choice.tokenizer_model);
  const nlohmann::json id = member(read_object(choice.vocab_file), "<|endoftext|>");
  return id.is_number_integer() ? both(id.get<int64_t>()) : TokenIds();
}

}  // namespace anymesh
