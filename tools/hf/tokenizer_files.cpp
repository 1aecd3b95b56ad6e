#include "tools/hf/tokenizer_files.h"

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <unordered_map>

#include "framework/data/tokenizers/package_settings.h"
#include "framework/format/io.h"
#include "framework/util/errors.h"
#include "framework/util/input_file.h"
#include "framework/util/json.h"
#include "framework/util/parse_number.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;

// Reads an object. Returns an empty one if it cannot, since another file may have the value.
nlohmann::json read_object(const fs::path& file) {
  if (!fs::is_regular_file(file)) return nlohmann::json::object();
  auto json = nlohmann::json::parse(bounded(read_file(file), file), nullptr,
                                    /*allow_exceptions=*/false);
  return json.is_object() ? json : nlohmann::json::object();
}

// Returns the text of a token that is a text or an object with one; "" for another.
std::string token_text(const nlohmann::json& token) {
  const nlohmann::json text = token.is_object() ? member(token, "content") : token;
  return text.is_string() ? text.get<std::string>() : "";
}

std::optional<int64_t> id_in(const nlohmann::json& value) {
  const int64_t id = value.is_number_integer() ? value.get<int64_t>() : -1;
  return id >= 0 && id <= INT32_MAX ? std::optional(id) : std::nullopt;
}

PackageSettings settings_of(const fs::path& folder) try {
  return PackageSettings(folder);
} catch (const DamagedFile&) {
  return PackageSettings("");
}

// A tokenizer as transformers stores it, in one or several of these files. A token that a
// tokenizer.json lacks gets the next id there, in the order of the settings that name it. Settings
// that cannot be read name none.
class Package {
 public:
  explicit Package(const fs::path& folder)
      : settings_(settings_of(folder)),
        tokenizer_(read_object(folder / "tokenizer.json")),
        vocab_(read_object(folder / "vocab.json")),
        added_(read_object(folder / "added_tokens.json")) {
    if (tokenizer_.empty()) return;
    count_tokenizer();
    const std::string file = folder / "tokenizer.json";
    try {
      const auto tokens = settings_.tokens({tokenizer_, file, ""});
      for (const auto& [origin, token] : tokens.numbered) add(token.content);
      for (const auto& [token, special] : tokens.others) add(content_of(token));
    } catch (const DamagedFile&) {  // they name none
    }
  }

  std::optional<int64_t> id_of_token(const std::string& name) const {
    std::string text = token_text(settings_.token(name.c_str()).json());
    if (text.empty() && name == "pad_token") return {};
    if (text.empty()) text = "<|endoftext|>";  // GPT-2's does not say
    if (const auto known = ids_.find(text); known != ids_.end()) return known->second;
    for (const nlohmann::json* map : {&added_, &vocab_})
      if (const auto id = id_in(member(*map, text))) return id;
    for (const auto& [id, token] : settings_.config(PackageSettings::kNumbered).json().items())
      if (token_text(token) == text) return parse_number<int64_t>(id);
    return {};
  }

 private:
  void add(const std::string& token, std::optional<int64_t> id = {}) {
    if (token.empty()) return;
    const auto added = ids_.try_emplace(token, id.value_or(next_)).first;
    next_ = std::max(next_, added->second + 1);
  }

  void count_tokenizer() {
    const nlohmann::json vocab = member(member(tokenizer_, "model"), "vocab");
    if (vocab.is_object())
      for (const auto& [token, id] : vocab.items())
        if (const auto known = id_in(id)) ids_[token] = *known;
    for (size_t i = 0; vocab.is_array() && i < vocab.size(); ++i)
      if (vocab[i].is_array() && !vocab[i].empty() && vocab[i][0].is_string())
        ids_[vocab[i][0].get<std::string>()] = static_cast<int64_t>(i);
    next_ = std::ssize(ids_);
    for (const nlohmann::json& token : member(tokenizer_, "added_tokens"))
      if (const auto id = id_in(member(token, "id"))) add(token_text(token), *id);
  }

  PackageSettings settings_;
  nlohmann::json tokenizer_, vocab_, added_;
  std::unordered_map<std::string, int64_t> ids_;  // of a tokenizer.json and its settings
  int64_t next_ = 0;
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
    const std::string name = key.substr(0, key.size() - std::string_view("_id").size());
    if (const auto id = package.id_of_token(name)) ids[key] = {*id};
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
