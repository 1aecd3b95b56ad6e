#include "tools/hf/tokenizer_files.h"

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "framework/format/io.h"
#include "framework/util/input_file.h"
#include "framework/util/json.h"
#include "framework/util/parse_number.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;

using OrderedJson = nlohmann::ordered_json;  // of small files whose order counts

// Reads an object. Returns an empty one if it cannot, since another file may have the value.
template <class Any = nlohmann::json>
Any read_object(const fs::path& file) {
  if (!fs::is_regular_file(file)) return Any::object();
  Any json = Any::parse(bounded(read_file(file), file), nullptr, /*allow_exceptions=*/false);
  return json.is_object() ? json : Any::object();
}

template <class Any>
Any part(const Any& object, const char* key) {
  return object.is_object() ? object.value(key, Any()) : Any();
}

// Returns the text of a token that is a text or an object with one; "" for another.
template <class Any>
std::string content_of(const Any& token) {
  const Any content = token.is_object() ? part(token, "content") : token;
  return content.is_string() ? content.template get<std::string>() : "";
}

std::optional<int64_t> id_in(const nlohmann::json& value) {
  const int64_t id = value.is_number_integer() ? value.get<int64_t>() : -1;
  return id >= 0 && id <= INT32_MAX ? std::optional(id) : std::nullopt;
}

// The names that all classes of transformers know, in its order.
constexpr std::string_view kNames[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                       "pad_token", "cls_token", "mask_token"};

// A tokenizer as transformers stores it, in one or several of these files. A token that a
// tokenizer.json lacks gets the next id there, in the order of the settings that name it.
// Counterpart: framework/data/tokenizers/package_settings.cpp, which has libraries that this
// program does without.
class Package {
 public:
  explicit Package(const fs::path& folder)
      : config_(read_object<OrderedJson>(folder / "tokenizer_config.json")),
        special_(read_object<OrderedJson>(folder / "special_tokens_map.json")),
        numbered_(part(config_, "added_tokens_decoder")),
        tokenizer_(read_object(folder / "tokenizer.json")),
        vocab_(read_object(folder / "vocab.json")),
        added_(read_object(folder / "added_tokens.json")) {
    if (tokenizer_.empty()) return;
    count_tokenizer();
    count_numbered();
    for (const std::string_view name : kNames) add(named(std::string(name)));
    for (const std::string& token : own_tokens()) add(token);
    for (const OrderedJson& token : extra_tokens()) add(content_of(token));
  }

  std::optional<int64_t> id_of_token(const std::string& name) const {
    std::string text = named(name);
    if (text.empty() && name == "pad_token") return {};
    if (text.empty()) text = "<|endoftext|>";  // GPT-2's does not say
    if (const auto known = ids_.find(text); known != ids_.end()) return known->second;
    for (const nlohmann::json* map : {&added_, &vocab_})
      if (const auto id = id_in(part(*map, text.c_str()))) return id;
    for (const auto& [id, token] : numbered_.items())
      if (content_of(token) == text) return parse_number<int64_t>(id);
    return {};
  }

 private:
  // Older packages have no added_tokens_decoder. Then the other files count, and go first.
  bool is_old() const { return numbered_.is_null(); }

  std::string named(const std::string& name) const {
    const std::string here = content_of(part(config_, name.c_str())),
                      there = content_of(part(special_, name.c_str()));
    return there.empty() || (!is_old() && !here.empty()) ? here : there;
  }

  void add(const std::string& token, std::optional<int64_t> id = {}) {
    if (token.empty()) return;
    const auto added = ids_.try_emplace(token, id.value_or(next_)).first;
    next_ = std::max(next_, added->second + 1);
  }

  void count_tokenizer() {
    const nlohmann::json vocab = part(part(tokenizer_, "model"), "vocab");
    if (vocab.is_object())
      for (const auto& [token, id] : vocab.items())
        if (const auto known = id_in(id)) ids_[token] = *known;
    for (size_t i = 0; vocab.is_array() && i < vocab.size(); ++i)
      if (vocab[i].is_array() && !vocab[i].empty() && vocab[i][0].is_string())
        ids_[vocab[i][0].get<std::string>()] = static_cast<int64_t>(i);
    next_ = std::ssize(ids_);
    for (const nlohmann::json& token : part(tokenizer_, "added_tokens"))
      if (const auto id = id_in(part(token, "id"))) add(content_of(token), *id);
  }

  // Tokens that come with an id, which counts for their order alone.
  void count_numbered() {
    std::multimap<int64_t, std::string> tokens;
    for (const auto& [key, token] : numbered_.items())
      if (const auto id = parse_number<int64_t>(key)) tokens.emplace(*id, content_of(token));
    if (is_old()) {
      for (const nlohmann::json& token : part(tokenizer_, "added_tokens"))
        if (const auto id = id_in(part(token, "id"))) tokens.emplace(*id, "");
      for (const auto& [token, value] : added_.items())
        if (const auto id = id_in(value); id && !tokens.contains(*id)) tokens.emplace(*id, token);
    }
    for (const auto& [id, token] : tokens) add(token);
  }

  // Names of a class's own come in two groups: texts in the config, and others go behind them, but
  // before them where a name is the same.
  std::vector<std::string> own_tokens() const {
    using Named = std::vector<std::pair<std::string, std::string>>;
    Named own[2];
    const auto set = [](Named& group, const std::string& name, const std::string& token) {
      const auto known = std::ranges::find(group, name, &Named::value_type::first);
      if (known == group.end())
        group.emplace_back(name, token);
      else
        known->second = token;
    };
    for (const OrderedJson* file : {&config_, &special_}) {
      if (file == &special_ && !is_old()) break;
      for (const auto& [name, token] : file->items())
        if (name.ends_with("_token") && std::ranges::find(kNames, name) == std::end(kNames) &&
            !content_of(token).empty())
          set(own[file == &special_ || !token.is_string()], name, content_of(token));
      if (const OrderedJson extra = part(*file, kExtra); extra.is_object())
        for (const auto& [name, token] : extra.items()) set(own[1], name, content_of(token));
    }
    for (const auto& [name, token] : own[1]) set(own[0], name, token);
    std::vector<std::string> tokens;
    for (const auto& [name, token] : own[0]) tokens.push_back(token);
    return tokens;
  }

  std::vector<OrderedJson> extra_tokens() const {
    OrderedJson tokens = part(config_, kExtra);
    const OrderedJson old = part(config_, kOldExtra), more = part(special_, kExtra),
                      later = part(special_, kOldExtra);
    if (tokens.empty() && !old.is_null()) tokens = old;
    if (is_old() && more.is_array()) {
      if (!tokens.is_array()) tokens = OrderedJson::array();
      tokens.insert(tokens.end(), more.begin(), more.end());
    }
    if (!tokens.is_array()) tokens = is_old() && !later.is_null() ? later : old;
    return tokens.is_array() ? tokens : OrderedJson::array();
  }

  static constexpr const char* kExtra = "extra_special_tokens";
  static constexpr const char* kOldExtra = "additional_special_tokens";
  OrderedJson config_, special_, numbered_;
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
    const nlohmann::json value = part(generation, key.c_str());
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
  const nlohmann::json id = part(read_object(choice.vocab_file), "<|endoftext|>");
  return id.is_number_integer() ? both(id.get<int64_t>()) : TokenIds();
}

}  // namespace anymesh
