#include "framework/data/tokenizer.h"

#include <utf8proc.h>

#include <array>
#include <functional>
#include <nlohmann/json.hpp>
#include <queue>
#include <sstream>
#include <unordered_map>
#include <utility>

#include "framework/data/tokenizer_files.h"
#include "framework/util/errors.h"
#include "framework/util/utf8.h"

namespace anymesh {
namespace {

constexpr std::string_view kEndOfText = "<|endoftext|>";

enum class CharClass { kLetter, kNumber, kSpace, kOther };

// Classifies as regular expressions do: \p{L}, \p{N}, and Unicode's White_Space.
CharClass classify(const CodePoint& c) {
  if (!c.valid) return CharClass::kOther;
  if ((c.value >= '\t' && c.value <= '\r') || c.value == 0x85) return CharClass::kSpace;
  switch (utf8proc_category_string(static_cast<utf8proc_int32_t>(c.value))[0]) {
    case 'L':
      return CharClass::kLetter;
    case 'N':
      return CharClass::kNumber;
    case 'Z':
      return CharClass::kSpace;
    default:
      return CharClass::kOther;
  }
}

// Returns the end of the run of `wanted` characters that begins at `begin`.
size_t run_end(std::string_view text, size_t begin, CharClass wanted) {
  size_t end = begin;
  while (end < text.size()) {
    const CodePoint c = decode_utf8(text.substr(end));
    if (classify(c) != wanted) break;
    end += c.bytes;
  }
  return end;
}

// Returns the length of the white space in front. Its last character is left to a word behind it.
size_t space_run(std::string_view text) {
  const size_t end = run_end(text, 0, CharClass::kSpace);
  size_t last = end - 1;  // where its last character begins
  while ((text[last] & 0xc0) == 0x80) --last;
  return end < text.size() && last > 0 ? last : end;
}

class ByteLevelTokenizer final : public Tokenizer {
 public:
  std::vector<int32_t> encode(std::string_view text) override {
    const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
    return {bytes, bytes + text.size()};
  }

  std::string decode(std::span<const int32_t> ids) const override {
    std::string text;
    for (const int32_t id : ids) {
      if (id < 0 || id > eod()) throw_error("token ", id, " is outside [0, 257)");
      if (id == eod())
        text += kEndOfText;
      else
        text += static_cast<char>(id);
    }
    return text;
  }

  int32_t vocab_size() const override { return 257; }
  int32_t eod() const override { return 256; }
};

// GPT-2 spells bytes as printable characters. Bytes that are printable in Latin-1 are spelled as
// themselves, the others, in order, as U+0100 and up.
std::array<char32_t, 256> byte_spelling() {
  std::array<char32_t, 256> spelling{};
  char32_t next = 256;
  for (char32_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte != 0xad);
    spelling[byte] = printable ? byte : next++;
  }
  return spelling;
}

// Returns the bytes that a vocabulary entry spells. An entry with other characters (a special
// token) stands for its own text.
std::string spelled_bytes(const std::string& token) {
  static const auto kBytes = [] {
    std::unordered_map<char32_t, char> bytes;
    const auto spelling = byte_spelling();
    for (int byte = 0; byte < 256; ++byte) bytes[spelling[byte]] = static_cast<char>(byte);
    return bytes;
  }();
  std::string bytes;
  for (size_t at = 0; at < token.size();) {
    const CodePoint c = decode_utf8(std::string_view(token).substr(at));
    const auto found = kBytes.find(c.value);
    if (found == kBytes.end()) return token;
    bytes += found->second;
    at += c.bytes;
  }
  return bytes;
}

class Gpt2BpeTokenizer final : public Tokenizer {
 public:
  Gpt2BpeTokenizer(const std::string& vocab_file, const std::string& merge_file) {
    const auto ids = read_vocabulary(vocab_file);
    read_merges(merge_file, ids);
  }

  std::vector<int32_t> encode(std::string_view text) override {
    constexpr size_t kCachedWords = 1 << 18, kCachedBytes = 64;
    std::vector<int32_t> ids;
    while (!text.empty()) {
      const std::string_view word = text.substr(0, next_word(text));
      text.remove_prefix(word.size());
      const auto found = cache_.find(word);
      if (found != cache_.end()) {
        ids.insert(ids.end(), found->second.begin(), found->second.end());
        continue;
      }
      const auto encoded = encode_word(word);
      ids.insert(ids.end(), encoded.begin(), encoded.end());
      if (cache_.size() < kCachedWords && word.size() <= kCachedBytes)
        cache_.emplace(word, encoded);
    }
    return ids;
  }

  std::string decode(std::span<const int32_t> ids) const override {
    std::string text;
    for (const int32_t id : ids) {
      if (id < 0 || id >= vocab_size())
        throw_error("token ", id, " is outside [0, ", vocab_size(), ")");
      text += bytes_[id];
    }
    return text;
  }

  int32_t vocab_size() const override { return static_cast<int32_t>(bytes_.size()); }
  int32_t eod() const override { return eod_; }

 private:
  using Ids = std::unordered_map<std::string, int32_t>;

  struct Merge {
    int32_t rank;
    int32_t id;
  };

  // One token of a word while it is being merged; dead ones have id -1.
  struct Symbol {
    int32_t id;
    size_t previous;
    size_t next;
  };

  using Candidate = std::pair<int32_t, size_t>;  // the rank of a merge, its left symbol

  struct StringHash : std::hash<std::string_view> {
    using is_transparent = void;
  };

  Ids read_vocabulary(const std::string& file) {
    const std::string text = read_tokenizer_file(file, TokenizerFile::kVocabulary);
    check_splits_as_gpt2(file);
    nlohmann::json json;
    try {
      json = nlohmann::json::parse(text);
    } catch (const nlohmann::json::exception& error) {
      throw_error(file, ": ", error.what());
    }
    if (!json.is_object()) throw_error(file, ": expected one JSON object of \"token\": id");

    Ids ids;
    bytes_.resize(json.size());
    std::vector<bool> taken(json.size());
    for (const auto& [token, id] : json.items()) {
      if (!id.is_number_unsigned() || id.get<uint64_t>() >= taken.size() || taken[id.get<size_t>()])
        throw_error(file, ": token ", nlohmann::json(token).dump(), " has id ",
                    id.is_structured() ? id.type_name() : id.dump(), ", expected each of 0 to ",
                    taken.size() - 1, " once");
      taken[id.get<size_t>()] = true;
      ids[token] = id.get<int32_t>();
      bytes_[id.get<size_t>()] = spelled_bytes(token);
    }
    const auto id_of = [&](const std::string& token) {
      const auto found = ids.find(token);
      if (found == ids.end()) throw_error(file, ": lacks the token \"", token, "\"");
      return found->second;
    };
    eod_ = id_of(std::string(kEndOfText));
    const auto spelling = byte_spelling();
    for (int byte = 0; byte < 256; ++byte) byte_ids_[byte] = id_of(encode_utf8(spelling[byte]));
    return ids;
  }

  void read_merges(const std::string& file, const Ids& ids) {
    std::istringstream in(read_tokenizer_file(file, TokenizerFile::kMerges));
    std::string line;
    for (int32_t number = 1; std::getline(in, line); ++number) {
      if (line.ends_with('\r')) line.pop_back();
      if (line.empty() || (number == 1 && line.starts_with("#version"))) continue;
      const std::string where = file + ":" + std::to_string(number) + ": ";
      const size_t space = line.find(' ');
      if (space == std::string::npos || line.find(' ', space + 1) != std::string::npos)
        throw_error(where, "expected two tokens and a space between them, got \"", line, "\"");
      const auto id_of = [&](const std::string& token) {
        const auto found = ids.find(token);
        if (found == ids.end()) throw_error(where, "\"", token, "\" is not in the vocabulary");
        return found->second;
      };
      const std::string left = line.substr(0, space), right = line.substr(space + 1);
      const uint64_t pair = pair_key(id_of(left), id_of(right));
      merges_[pair] = {number, id_of(left + right)};
    }
  }

  static uint64_t pair_key(int32_t left, int32_t right) {
    return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  }

  const Merge* find_merge(const std::vector<Symbol>& symbols, size_t left) const {
    const size_t right = symbols[left].next;
    if (symbols[left].id < 0 || right == symbols.size()) return nullptr;
    const auto found = merges_.find(pair_key(symbols[left].id, symbols[right].id));
    return found == merges_.end() ? nullptr : &found->second;
  }

  // Merges every occurrence, left to right, of the pair with the lowest rank, until no merge
  // applies. A queue of candidates makes that O(n log n). A candidate is stale if its symbols now
  // have another rank.
  std::vector<int32_t> encode_word(std::string_view word) const {
    std::vector<Symbol> symbols(word.size());
    for (size_t i = 0; i < word.size(); ++i)
      symbols[i] = {byte_ids_[static_cast<unsigned char>(word[i])], i - 1, i + 1};
    std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
    std::vector<size_t> changed(word.size());
    for (size_t i = 0; i < word.size(); ++i) changed[i] = i;
    while (true) {
      for (const size_t left : changed)
        if (const Merge* merge = find_merge(symbols, left)) queue.push({merge->rank, left});
      if (queue.empty()) break;
      changed.clear();
      for (const int32_t rank = queue.top().first; !queue.empty() && queue.top().first == rank;) {
        const size_t left = queue.top().second;
        queue.pop();
        const Merge* merge = find_merge(symbols, left);
        if (merge == nullptr || merge->rank != rank) continue;
        const size_t right = symbols[left].next;
        symbols[left].id = merge->id;
        symbols[left].next = symbols[right].next;
        symbols[right].id = -1;
        if (symbols[left].next < symbols.size()) symbols[symbols[left].next].previous = left;
        changed.push_back(left);
        if (left > 0) changed.push_back(symbols[left].previous);
      }
    }
    std::vector<int32_t> ids;
    for (size_t i = 0; i < symbols.size(); i = symbols[i].next) ids.push_back(symbols[i].id);
    return ids;
  }

  int32_t eod_ = 0;
  std::vector<std::string> bytes_;  // of each token
  std::array<int32_t, 256> byte_ids_{};
  std::unordered_map<uint64_t, Merge> merges_;
  std::unordered_map<std::string, std::vector<int32_t>, StringHash, std::equal_to<>> cache_;
};

}  // namespace

size_t next_word(std::string_view text) {
  if (text[0] == '\'') {
    for (const std::string_view suffix : {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"})
      if (text.starts_with(suffix)) return suffix.size();
  }
  const size_t begin = text[0] == ' ' && text.size() > 1 ? 1 : 0;
  const CharClass first = classify(decode_utf8(text.substr(begin)));
  return first == CharClass::kSpace ? space_run(text) : run_end(text, begin, first);
}

std::unique_ptr<Tokenizer> make_tokenizer(const std::string& type, const std::string& vocab_file,
                                          const std::string& merge_file,
                                          const std::string& tokenizer_model) {
  if (type == "SentencePieceTokenizer" || type == "GPTSentencePieceTokenizer") {
    if (tokenizer_model.empty() || !vocab_file.empty() || !merge_file.empty())
      throw_error("--tokenizer-type ", type,
                  " takes --tokenizer-model, and no vocabulary or merge file");
    return make_sentencepiece_tokenizer(tokenizer_model, type == "SentencePieceTokenizer");
  }
  if (!tokenizer_model.empty())
    throw_error("--tokenizer-type ", type, " takes no --tokenizer-model: that is for ",
                "SentencePieceTokenizer and GPTSentencePieceTokenizer");
  if (type == "ByteLevelTokenizer") {
    if (!vocab_file.empty() || !merge_file.empty())
      throw_error("--tokenizer-type ByteLevelTokenizer takes no --vocab-file and no --merge-file");
    return std::make_unique<ByteLevelTokenizer>();
  }
  if (type == "GPT2BPETokenizer") {
    if (vocab_file.empty() || merge_file.empty())
      throw_error("--tokenizer-type GPT2BPETokenizer needs --vocab-file and --merge-file");
    return std::make_unique<Gpt2BpeTokenizer>(vocab_file, merge_file);
  }
  throw_error("--tokenizer-type ", type, ": expected ByteLevelTokenizer, GPT2BPETokenizer, ",
              "SentencePieceTokenizer or GPTSentencePieceTokenizer");
}

}  // namespace anymesh
