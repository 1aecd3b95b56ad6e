// A file decides how its lists refer to each other. This is what we accept.

#include <algorithm>
#include <unordered_set>

#include "framework/checkpoint/format/pickle_decoder.h"

namespace anymesh {
namespace {

constexpr size_t kMaxDepth = 200;

void check_keys(const std::vector<Value::Entry>& entries) {
  std::unordered_set<std::string_view> keys;
  for (const auto& [key, item] : entries) {
    if (key.is_string() && !keys.insert(key.as_string()).second) {
      throw ValueError("holds a dict with two keys " + key.found());
    }
  }
}

// A container that is being walked.
struct Frame {
  const Value* value;
  std::vector<const Value*> children;
  size_t next = 0;
  uint64_t expanded = 1;  // values in it so far
  size_t height = 1;      // levels below it so far
};

}  // namespace

const void* PickleDecoder::node(const Value& value) {
  if (value.is_object()) return &value.as_object();
  if (value.is_dict()) return std::get<std::shared_ptr<Value::Mapping>>(value.data_).get();
  if (value.is_sequence()) return std::get<std::shared_ptr<Value::Sequence>>(value.data_).get();
  return nullptr;
}

std::vector<const Value*> PickleDecoder::children(const Value& value) {
  std::vector<const Value*> result;
  const auto add = [&](const std::vector<Value>& items) {
    for (const Value& item : items) result.push_back(&item);
  };
  const auto add_entries = [&](const std::vector<Value::Entry>& entries) {
    check_keys(entries);
    for (const auto& [key, item] : entries) result.insert(result.end(), {&key, &item});
  };
  if (is_storage(value)) throw ValueError("holds a storage outside a tensor");
  if (value.is_sequence()) add(*value.find_items());
  if (value.is_dict()) add_entries(*value.find_entries());
  if (value.is_object()) {
    const Value::Object& object = value.as_object();
    add(object.args);
    add(object.items);
    add_entries(object.entries);
    if (object.state) result.push_back(object.state.get());
  }
  return result;
}

// Depth first, without recursion: refuses a value that contains itself, deep nesting, and a small
// file that stands for a huge tree because its lists share each other.
PickleDecoder::Reached PickleDecoder::check_tree(const Value& root) const {
  Reached expanded;  // 0 while a container is being walked
  std::unordered_map<const void*, size_t> heights;
  std::vector<Frame> open = {{&root, children(root)}};
  if (node(root)) expanded[node(root)] = 0;
  const auto add = [this, &open](uint64_t values, size_t height) {
    Frame& parent = open.back();
    parent.expanded += values;
    parent.height = std::max(parent.height, height + 1);
    // A shared list counts each time it is reached; honest files share little.
    if (parent.expanded > limit_ / sizeof(Value)) {
      throw ValueError("stands for more values than memory could hold");
    }
    if (open.size() + parent.height > kMaxDepth) {
      throw ValueError("nests deeper than " + std::to_string(kMaxDepth));
    }
  };
  while (!open.empty()) {
    Frame& frame = open.back();
    if (frame.next < frame.children.size()) {
      const Value& child = *frame.children[frame.next++];
      const void* self = node(child);
      const auto known = expanded.find(self);
      if (!self) {
        add(1, 0);
      } else if (known == expanded.end()) {
        expanded[self] = 0;
        open.push_back({&child, children(child)});
        if (open.size() > kMaxDepth) add(0, 0);
      } else if (known->second == 0) {
        throw ValueError("holds a value that contains itself");
      } else {
        add(known->second, heights[self]);
      }
      continue;
    }
    const Frame done = std::move(frame);
    open.pop_back();
    if (const void* self = node(*done.value)) {
      expanded[self] = done.expanded;
      heights[self] = done.height;
    }
    if (!open.empty()) add(done.expanded, done.height);
  }
  return expanded;
}

}  // namespace anymesh
