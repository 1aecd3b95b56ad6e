#include <algorithm>
#include <functional>

#include "framework/data/tokenizers/characters.h"
#include "framework/data/tokenizers/token_model.h"
#include "framework/util/utf8.h"

namespace anymesh {
namespace {

uint64_t pair_key(int32_t left, int32_t right) {
  return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
}

}  // namespace

Bpe::Bpe(const Vocabulary& vocabulary, BpeOptions options)
    : options_(options), characters_(vocabulary.count() / 16) {
  byte_units_.fill(-1);
  for (int32_t id = 0; id < vocabulary.size(); ++id) {
    if (!vocabulary.contains(id)) continue;
    const std::string& token = vocabulary.token(id);
    const auto bytes = options.bytes ? spelled_bytes(token) : token;
    if (!bytes || bytes->empty()) continue;
    if (options.ignore_merges) words_.emplace(*bytes, id);
    const CodePoint first = decode_utf8(*bytes);
    if (bytes->size() == 1)
      byte_units_[static_cast<unsigned char>((*bytes)[0])] = id;
    else if (!options.bytes && first.bytes == bytes->size())
      characters_[first.value] = id;
  }
  for (int byte = 0; byte < 256; ++byte)
    byte_tokens_[static_cast<size_t>(byte)] =
        options.byte_fallback
            ? vocabulary.find(fallback_token(static_cast<uint8_t>(byte))).value_or(-1)
            : -1;
}

void Bpe::add_merge(int32_t left, int32_t right, uint32_t rank, int32_t result) {
  merges_[pair_key(left, right)] = {rank, result};
  if (rank >= results_.size()) results_.resize(rank + 1, -1);
  results_[rank] = result;
}

void Bpe::encode(std::string_view piece, std::vector<int32_t>& ids) {
  if (options_.ignore_merges) {
    if (const auto found = words_.find(piece); found != words_.end()) {
      ids.push_back(found->second);
      return;
    }
  }
  if (piece.size() > UINT32_MAX / 2)
    throw_error("a piece of ", piece.size(), " bytes is too long to tokenize");
  symbols_.clear();
  add_symbols(piece);
  merge_symbols();
  for (uint32_t i = 0; i < symbols_.size(); i = symbols_[i].next) ids.push_back(symbols_[i].id);
}

void Bpe::add_symbol(int32_t id) {
  const auto at = static_cast<uint32_t>(symbols_.size());
  symbols_.push_back({id, at - 1, at + 1});
}

// Returns the token of the byte or character in front, or -1.
int32_t Bpe::unit_at(std::string_view rest, size_t& size) const {
  size = 1;
  const auto byte = static_cast<unsigned char>(rest[0]);
  if (options_.bytes || byte < 0x80) return byte_units_[byte];
  const CodePoint c = decode_utf8(rest);
  size = c.bytes;
  const int32_t* id = characters_.find(c.value);
  return id == nullptr ? -1 : *id;
}

bool Bpe::add_fallback(std::string_view unit) {
  const auto token_of = [this](char c) { return byte_tokens_[static_cast<unsigned char>(c)]; };
  if (std::ranges::any_of(unit, [&](char c) { return token_of(c) < 0; })) return false;
  for (const char c : unit) add_symbol(token_of(c));
  return true;
}

// An unknown unit waits until a known one follows.
void Bpe::add_symbols(std::string_view piece) {
  bool waiting = false;
  while (!piece.empty()) {
    size_t size = 0;
    const int32_t id = unit_at(piece, size);
    const std::string_view unit = piece.substr(0, size);
    piece.remove_prefix(size);
    if (id >= 0) {
      if (waiting) add_symbol(*options_.unk);
      waiting = false;
      add_symbol(id);
    } else if (!add_fallback(unit) && options_.unk) {
      if (waiting && !options_.fuse_unk) add_symbol(*options_.unk);
      waiting = true;
    }
  }
  if (waiting) add_symbol(*options_.unk);
}

const Bpe::Merge* Bpe::merge_at(uint32_t left) const {
  const Symbol& symbol = symbols_[left];
  if (symbol.id < 0 || symbol.next >= symbols_.size()) return nullptr;
  return merges_.find(pair_key(symbol.id, symbols_[symbol.next].id));
}

void Bpe::push_candidate(uint32_t left) {
  const Merge* merge = merge_at(left);
  if (merge == nullptr) return;
  candidates_.push_back(uint64_t{merge->rank} << 32 | left);
  std::push_heap(candidates_.begin(), candidates_.end(), std::greater<>());
}

void Bpe::push_neighbours(uint32_t left) {
  if (left > 0 && symbols_[left].id >= 0) push_candidate(symbols_[left].previous);
  push_candidate(left);
}

// A heap of candidates makes that O(n log n). A candidate is stale if its symbols would now become
// another token.
void Bpe::merge_symbols() {
  candidates_.clear();
  for (uint32_t left = 0; left < symbols_.size(); ++left)
    if (const Merge* merge = merge_at(left))
      candidates_.push_back(uint64_t{merge->rank} << 32 | left);
  std::make_heap(candidates_.begin(), candidates_.end(), std::greater<>());
  while (!candidates_.empty()) {
    std::pop_heap(candidates_.begin(), candidates_.end(), std::greater<>());
    const uint64_t candidate = candidates_.back();
    candidates_.pop_back();
    const auto left = static_cast<uint32_t>(candidate),
               rank = static_cast<uint32_t>(candidate >> 32);
    const Merge* merge = merge_at(left);
    if (merge != nullptr && merge->result == results_[rank] &&
        (!options_.whole_passes || merge->rank == rank)) {
      Symbol& symbol = symbols_[left];
      symbol.id = merge->result;
      symbols_[symbol.next].id = -1;
      symbol.next = symbols_[symbol.next].next;
      if (symbol.next < symbols_.size()) symbols_[symbol.next].previous = left;
      if (options_.whole_passes)
        deferred_.push_back(left);
      else
        push_neighbours(left);
    }
    if (candidates_.empty() || candidates_.front() >> 32 != rank) {
      for (const uint32_t each : deferred_) push_neighbours(each);
      deferred_.clear();
    }
  }
}

}  // namespace anymesh
