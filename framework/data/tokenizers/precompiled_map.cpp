#include <utf8proc.h>

#include "framework/data/tokenizers/base64.h"
#include "framework/data/tokenizers/characters.h"
#include "framework/data/tokenizers/pipeline_tokenizer.h"
#include "framework/util/utf8.h"

namespace anymesh {
namespace {

uint32_t little_endian(std::string_view bytes) {
  uint32_t value = 0;
  for (size_t i = 4; i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[i]);
  return value;
}

// A unit of the trie, in Darts-clone's layout.
bool has_leaf(uint32_t unit) { return (unit >> 8 & 1) != 0; }
uint32_t label(uint32_t unit) { return unit & (uint32_t{1} << 31 | 0xFF); }
uint32_t value(uint32_t unit) { return unit & ((uint32_t{1} << 31) - 1); }
size_t offset(uint32_t unit) { return size_t{unit >> 10} << ((unit & (1 << 9)) >> 6); }

// Returns the size of the grapheme at the front of a non-empty text.
size_t grapheme_size(std::string_view text) {
  utf8proc_int32_t state = 0;
  CodePoint c = decode_utf8(text);
  size_t size = c.bytes;
  while (size < text.size()) {
    const CodePoint next = decode_utf8(text.substr(size));
    if (utf8proc_grapheme_break_stateful(static_cast<utf8proc_int32_t>(c.value),
                                         static_cast<utf8proc_int32_t>(next.value), &state))
      break;
    c = next;
    size += c.bytes;
  }
  return size;
}

// The `precompiled_charsmap` is in base64: the size of a double-array trie in bytes, the trie, and
// the replacements, each ended by a zero. The trie maps a text to where its replacement begins.
//
// A grapheme of less than 6 bytes is replaced as a whole if the trie has a prefix of it; else each
// of its characters is.
class PrecompiledMap {
 public:
  explicit PrecompiledMap(const JsonNode& node) {
    const auto bytes = decode_base64(node.text());
    if (!bytes || bytes->size() < 4) node.fail("is no map of characters in base64");
    const std::string_view rest = std::string_view(*bytes).substr(4);
    const size_t size = little_endian(*bytes);
    if (size > rest.size() || size % 4 != 0 || size == 0) node.fail("has a trie that is cut off");
    for (size_t at = 0; at < size; at += 4) trie_.push_back(little_endian(rest.substr(at)));
    replacements_ = rest.substr(size);
    if (!is_utf8(replacements_)) node.fail("has a replacement that is no UTF-8");
  }

  std::string apply(std::string_view text) const {
    std::string result;
    while (!text.empty()) {
      std::string_view grapheme = text.substr(0, grapheme_size(text));
      text.remove_prefix(grapheme.size());
      const auto whole = grapheme.size() < 6 ? replacement(grapheme) : std::nullopt;
      if (whole) result += *whole;
      while (!whole && !grapheme.empty()) {
        const std::string_view c = grapheme.substr(0, decode_utf8(grapheme).bytes);
        result += replacement(c).value_or(c);
        grapheme.remove_prefix(c.size());
      }
    }
    return result;
  }

 private:
  // Returns that of the shortest prefix which the trie has.
  std::optional<std::string_view> replacement(std::string_view text) const {
    size_t at = offset(trie_[0]);
    for (const char c : text) {
      const auto byte = static_cast<unsigned char>(c);
      at ^= byte;
      if (byte == 0 || at >= trie_.size() || label(trie_[at]) != byte) return {};
      const uint32_t unit = trie_[at];
      at ^= offset(unit);
      if (!has_leaf(unit)) continue;
      const size_t begin = at < trie_.size() ? value(trie_[at]) : replacements_.size();
      if (begin >= replacements_.size()) return "";
      return std::string_view(replacements_.c_str() + begin);
    }
    return {};
  }

  std::vector<uint32_t> trie_;
  std::string replacements_;
};

}  // namespace

std::function<std::string(std::string_view)> read_precompiled_map(const JsonNode& node) {
  return [map = PrecompiledMap(node)](std::string_view text) { return map.apply(text); };
}

}  // namespace anymesh
