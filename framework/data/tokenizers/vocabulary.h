#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace anymesh {

struct StringHash : std::hash<std::string_view> {
  using is_transparent = void;
};
template <class Value>
using StringMap = std::unordered_map<std::string, Value, StringHash, std::equal_to<>>;

// Tokens and their ids. Some ids may be without a token.
class Vocabulary {
 public:
  // Files that anyone may have written must not make a table of 2^31 ids.
  static constexpr int64_t kMostIds = 1 << 24, kMostGaps = 1 << 17;

  // Returns whether it could: a token and an id have one partner each. With `again`, the token may
  // have an id already; find() then returns the new one.
  bool add(const std::string& token, int32_t id, bool again = false) {
    const auto index = static_cast<size_t>(id);
    if (index < used_.size() && used_[index]) return false;
    if (2 * count_ >= places_.size()) grow();
    int32_t& place = places_[place_of(token)];
    if (place >= 0 && !again) return false;
    place = id;
    ++count_;
    if (index >= used_.size()) {
      tokens_.resize(index + 1);
      used_.resize(index + 1);
    }
    tokens_[index] = token;
    used_[index] = true;
    return true;
  }

  std::optional<int32_t> find(std::string_view token) const {
    const int32_t id = places_[place_of(token)];
    return id < 0 ? std::nullopt : std::optional(id);
  }
  size_t count() const { return count_; }                                // of tokens
  int32_t size() const { return static_cast<int32_t>(tokens_.size()); }  // the last id + 1
  bool contains(int32_t id) const {
    return id >= 0 && id < size() && used_[static_cast<size_t>(id)];
  }
  const std::string& token(int32_t id) const { return tokens_[static_cast<size_t>(id)]; }

 private:
  // Returns where the token's id is, or belongs.
  size_t place_of(std::string_view token) const {
    size_t at = std::hash<std::string_view>()(token) & (places_.size() - 1);
    while (places_[at] >= 0 && tokens_[static_cast<size_t>(places_[at])] != token)
      at = (at + 1) & (places_.size() - 1);
    return at;
  }
  void grow() {
    std::vector<int32_t> old(2 * places_.size(), -1);
    old.swap(places_);
    for (const int32_t id : old)
      if (id >= 0) places_[place_of(token(id))] = id;
  }

  std::vector<std::string> tokens_;
  std::vector<bool> used_;
  std::vector<int32_t> places_ = std::vector<int32_t>(64, -1);  // a hash table of ids; -1: empty
  size_t count_ = 0;
};

}  // namespace anymesh
