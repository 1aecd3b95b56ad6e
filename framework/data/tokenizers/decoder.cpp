#include "framework/data/tokenizers/decoder.h"

#include <algorithm>
#include <numeric>

#include "framework/data/tokenizers/characters.h"
#include "framework/data/tokenizers/pattern.h"
#include "framework/util/utf8.h"

namespace anymesh {
namespace {

void join(std::vector<std::string>& parts) {
  std::string whole;
  for (const std::string& part : parts) whole += part;
  parts.clear();
  parts.push_back(std::move(whole));
}

class ByteLevelDecoder final : public Decoder {
 public:
  void apply(std::vector<std::string>& parts) const override {
    for (std::string& part : parts)
      if (auto bytes = spelled_bytes(part)) part = std::move(*bytes);
    join(parts);
  }
};

// Follows ByteLevelDecoder where it is not the last.
class Utf8Decoder final : public Decoder {
 public:
  void apply(std::vector<std::string>& parts) const override {
    for (std::string& part : parts) part = replace_invalid_utf8(part);
  }
};

// Joins the bytes of tokens <0xE2>. Where they are no UTF-8, each of them is U+FFFD.
class ByteFallbackDecoder final : public Decoder {
 public:
  void apply(std::vector<std::string>& parts) const override {
    std::vector<std::string> result;
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
};

class FuseDecoder final : public Decoder {
 public:
  void apply(std::vector<std::string>& parts) const override { join(parts); }
};

// Makes the mark a space, but in the first token nothing where the pre-tokenizer prepends it.
class MetaspaceDecoder final : public Decoder {
 public:
  explicit MetaspaceDecoder(const JsonNode& node)
      : mark_(node.at("replacement").text()),
        prepends_(node.at("prepend_scheme").text_or("always") != "never" &&
                  node.at("add_prefix_space").flag_or(true)) {
    if (mark_.empty()) node.at("replacement").expected("one character");
  }

  void apply(std::vector<std::string>& parts) const override {
    for (size_t i = 0; i < parts.size(); ++i) {
      const std::string_view by = i == 0 && prepends_ ? "" : " ";
      for (size_t at = 0; (at = parts[i].find(mark_, at)) != std::string::npos; at += by.size())
        parts[i].replace(at, mark_.size(), by);
    }
  }

 private:
  std::string mark_;
  bool prepends_;
};

class ReplaceDecoder final : public Decoder {
 public:
  explicit ReplaceDecoder(const JsonNode& node)
      : pattern_(node.at("pattern")), content_(node.at("content").text()) {}

  void apply(std::vector<std::string>& parts) const override {
    std::vector<Span> spans;
    for (std::string& part : parts) {
      spans.clear();
      pattern_.find_all(part, spans);
      part = Pattern::replaced(part, spans, content_);
    }
  }

 private:
  Pattern pattern_;
  std::string content_;
};

// Removes up to `start` and `stop` of a character from a token's ends.
class StripDecoder final : public Decoder {
 public:
  explicit StripDecoder(const JsonNode& node)
      : content_(node.at("content").text()),
        start_(static_cast<size_t>(node.at("start").integer(0, 1 << 20))),
        stop_(static_cast<size_t>(node.at("stop").integer(0, 1 << 20))) {
    if (content_.empty() || decode_utf8(content_).bytes != content_.size())
      node.at("content").expected("one character");
  }

  void apply(std::vector<std::string>& parts) const override {
    for (std::string& part : parts) {
      std::string_view rest = part;
      for (size_t i = 0; i < start_ && rest.starts_with(content_); ++i)
        rest.remove_prefix(content_.size());
      for (size_t i = 0; i < stop_ && rest.ends_with(content_); ++i)
        rest.remove_suffix(content_.size());
      part = std::string(rest);
    }
  }

 private:
  std::string content_;
  size_t start_, stop_;
};

// All decoders, those of sequences in it too.
class DecoderSequence final : public Decoder {
 public:
  explicit DecoderSequence(const JsonNode& node) {
    bool bytes = false;
    read(node, bytes);
  }
  void apply(std::vector<std::string>& parts) const override {
    const auto bytes_of = [](const std::vector<std::string>& texts) {
      return std::accumulate(texts.begin(), texts.end(), size_t{0},
                             [](size_t sum, const std::string& text) { return sum + text.size(); });
    };
    const size_t bytes = bytes_of(parts);
    for (const auto& part : parts_) {
      part->apply(parts);
      check_growth(bytes, bytes_of(parts));
    }
  }

 private:
  void read(const JsonNode& node, bool& bytes) {
    for (const JsonNode& part : node.at("decoders").list()) {
      const std::string& type = part.at("type").text();
      if (type == "Sequence") {
        read(part, bytes);
        continue;
      }
      if (bytes) parts_.push_back(std::make_unique<Utf8Decoder>());
      parts_.push_back(read_decoder(part));
      bytes = type == "ByteLevel";
    }
  }

  std::vector<std::unique_ptr<Decoder>> parts_;
};

}  // namespace

std::unique_ptr<Decoder> byte_decoder() { return std::make_unique<ByteLevelDecoder>(); }

std::unique_ptr<Decoder> read_decoder(const JsonNode& node) {
  if (node.is_null()) return nullptr;
  const std::string& type = node.at("type").text();
  if (type == "ByteLevel") return byte_decoder();
  if (type == "ByteFallback") return std::make_unique<ByteFallbackDecoder>();
  if (type == "Fuse") return std::make_unique<FuseDecoder>();
  if (type == "Metaspace") return std::make_unique<MetaspaceDecoder>(node);
  if (type == "Replace") return std::make_unique<ReplaceDecoder>(node);
  if (type == "Strip") return std::make_unique<StripDecoder>(node);
  if (type == "Sequence") return std::make_unique<DecoderSequence>(node);
  node.at("type").refuse("is " + printable(type) + ", a decoder that is not supported");
}

}  // namespace anymesh
