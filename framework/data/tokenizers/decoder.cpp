#include <algorithm>
#include <numeric>

#include "framework/data/tokenizers/characters.h"
#include "framework/data/tokenizers/pattern.h"
#include "framework/data/tokenizers/pipeline_tokenizer.h"
#include "framework/util/utf8.h"

namespace anymesh {
namespace {

using Parts = std::vector<std::string>;

void join(Parts& parts) { parts = {std::accumulate(parts.begin(), parts.end(), std::string())}; }

// Follows the decoder ByteLevel where it is not the last.
void replace_no_utf8(Parts& parts) {
  for (std::string& part : parts) part = replace_invalid_utf8(part);
}

// Joins the bytes of tokens <0xE2>. Where they are no UTF-8, each of them is U+FFFD.
void join_fallback_bytes(Parts& parts) {
  Parts result;
  std::string bytes;
  const auto end_bytes = [&] {
    if (bytes.empty()) return;
    if (is_utf8(bytes))
      result.push_back(bytes);
    else
      result.insert(result.end(), bytes.size(), "\ufffd");
    bytes.clear();
  };
  for (std::string& part : parts) {
    if (const auto byte = fallback_byte(part)) {
      bytes += static_cast<char>(*byte);
      continue;
    }
    end_bytes();
    result.push_back(std::move(part));
  }
  end_bytes();
  parts = std::move(result);
}

// Makes the mark a space, but in the first token nothing where the pre-tokenizer prepends it.
Decoder read_metaspace(const JsonNode& node) {
  const std::string mark = node.at("replacement").text();
  const bool prepends = node.at("prepend_scheme").text_or("always") != "never" &&
                        node.at("add_prefix_space").flag_or(true);
  if (mark.empty()) node.at("replacement").expected("one character");
  return [mark, prepends](Parts& parts) {
    for (size_t i = 0; i < parts.size(); ++i) {
      const std::string_view by = i == 0 && prepends ? "" : " ";
      for (size_t at = 0; (at = parts[i].find(mark, at)) != std::string::npos; at += by.size())
        parts[i].replace(at, mark.size(), by);
    }
  };
}

Decoder read_replacement(const JsonNode& node) {
  return [find = read_pattern(node.at("pattern")), by = node.at("content").text()](Parts& parts) {
    std::vector<Span> spans;
    for (std::string& part : parts) {
      spans.clear();
      find(part, spans);
      part = replaced(part, spans, by);
    }
  };
}

// Removes up to `start` and `stop` of a character from a token's ends.
Decoder read_strip(const JsonNode& node) {
  const std::string content = node.at("content").text();
  const int64_t start = node.at("start").integer(0, 1 << 20),
                stop = node.at("stop").integer(0, 1 << 20);
  if (content.empty() || decode_utf8(content).bytes != content.size())
    node.at("content").expected("one character");
  return [content, start, stop](Parts& parts) {
    for (std::string& part : parts) {
      std::string_view rest = part;
      for (int64_t i = 0; i < start && rest.starts_with(content); ++i)
        rest.remove_prefix(content.size());
      for (int64_t i = 0; i < stop && rest.ends_with(content); ++i)
        rest.remove_suffix(content.size());
      part = std::string(rest);
    }
  };
}

// Appends all decoders, those of sequences in it too.
void read_sequence(const JsonNode& node, bool& bytes, std::vector<Decoder>& all) {
  for (const JsonNode& part : node.at("decoders").list()) {
    const std::string& type = part.at("type").text();
    if (type == "Sequence") {
      read_sequence(part, bytes, all);
      continue;
    }
    if (bytes) all.emplace_back(replace_no_utf8);
    all.push_back(read_decoder(part));
    bytes = type == "ByteLevel";
  }
}

Decoder read_sequence(const JsonNode& node) {
  std::vector<Decoder> all;
  bool bytes = false;
  read_sequence(node, bytes, all);
  return [all](Parts& parts) {
    const auto bytes_of = [](const Parts& texts) {
      return std::accumulate(texts.begin(), texts.end(), size_t{0},
                             [](size_t sum, const std::string& text) { return sum + text.size(); });
    };
    const size_t before = bytes_of(parts);
    for (const Decoder& decoder : all) {
      decoder(parts);
      check_growth(before, bytes_of(parts));
    }
  };
}

}  // namespace

void decode_spelled_bytes(Parts& parts) {
  for (std::string& part : parts)
    if (auto bytes = spelled_bytes(part)) part = std::move(*bytes);
  join(parts);
}

Decoder read_decoder(const JsonNode& node) {
  if (node.is_null()) return nullptr;
  const std::string& type = node.at("type").text();
  if (type == "ByteLevel") return decode_spelled_bytes;
  if (type == "ByteFallback") return join_fallback_bytes;
  if (type == "Fuse") return join;
  if (type == "Metaspace") return read_metaspace(node);
  if (type == "Replace") return read_replacement(node);
  if (type == "Strip") return read_strip(node);
  if (type == "Sequence") return read_sequence(node);
  node.at("type").refuse("is " + printable(type) + ", a decoder that is not supported");
}

}  // namespace anymesh
