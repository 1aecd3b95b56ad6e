#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "framework/data/tokenizers/flat_map.h"

namespace anymesh {

// Finds which of many texts a text begins with.
class ByteTrie {
 public:
  bool empty() const { return values_.size() == 1; }

  // Gives a text its value, in place of an earlier one; -1 takes it out.
  void insert(std::string_view text, int32_t value) {
    uint32_t node = 0;
    for (const char c : text) {
      uint32_t& child = children_[key(node, c)];
      if (child == 0) {
        child = static_cast<uint32_t>(values_.size());
        values_.push_back(-1);
      }
      node = child;
    }
    values_[node] = value;
  }

  // Calls see(size, value) for each inserted text that `text` begins with, the shortest one first.
  template <class See>
  void for_each_prefix(std::string_view text, const See& see) const {
    uint32_t node = 0;
    for (size_t i = 0; i < text.size(); ++i) {
      const uint32_t* child = children_.find(key(node, text[i]));
      if (child == nullptr) return;
      node = *child;
      if (values_[node] >= 0) see(i + 1, values_[node]);
    }
  }

 private:
  static uint64_t key(uint32_t node, char c) {
    return uint64_t{node} << 8 | static_cast<unsigned char>(c);
  }

  FlatMap<uint32_t> children_;
  std::vector<int32_t> values_ = {-1};  // of each node; -1: it is inside a text
};

}  // namespace anymesh
