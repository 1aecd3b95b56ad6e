// Containers: how they are made and filled, and which ones are accepted in the end. The file
// decides how its lists refer to each other.

#include <algorithm>
#include <iterator>

#include "framework/format/torch_file/pickle_decoder.h"
#include "framework/util/errors.h"

namespace anymesh {
namespace {

constexpr size_t kMaxDepth = 200;

void check_keys(const std::vector<Value::Entry>& entries) {
  std::vector<std::string_view> keys;
  keys.reserve(entries.size());
  for (const auto& [key, item] : entries) {
    if (key.is_string()) keys.push_back(key.as_string());
  }
  std::sort(keys.begin(), keys.end());
  const auto twice = std::adjacent_find(keys.begin(), keys.end());
  if (twice != keys.end()) throw DamagedFile("holds a dict with two keys " + Value(*twice).found());
}

}  // namespace

// A torch.Size does not count as a container: it holds only a few integers.
const void* PickleDecoder::node(const Value& value) {
  if (value.is_object()) return &value.as_object();
  if (value.is_dict()) return value.find_entries();
  return value.kind() == Value::Kind::kSize ? nullptr : value.find_items();
}

uint64_t PickleDecoder::container_bytes(const Value& value) {
  uint64_t items = 0;
  for_each_child(value, [&items](const Value&) { items += sizeof(Value); });
  const uint64_t shared = value.is_object() ? kShared<Value::Object>
                          : value.is_dict() ? kShared<Value::Mapping>
                                            : kShared<Value::Sequence>;
  return sizeof(Container) + 8 + shared + block(items);  // 8: its share of the deque
}

// Counts both buffers of a vector while it moves.
template <typename T>
void PickleDecoder::reserve(std::vector<T>& items, size_t more) {
  const size_t size = items.size() + more, old = items.capacity();
  if (size <= old) return;
  const size_t capacity = std::max(size, old + old / 2);
  hold(block(capacity * sizeof(T)));
  items.reserve(capacity);
  held_ -= block(old * sizeof(T));
}

void PickleDecoder::push_new(Value value) {
  if (node(value)) {
    hold(container_bytes(value));
    containers_.push_back({value});
  }
  push(std::move(value));
}

// Releases the last containers that nothing else holds: the arguments of a finished call.
void PickleDecoder::collect() {
  const auto uses = [](const auto& data) -> int64_t {
    if constexpr (requires { data.use_count(); }) return data.use_count();
    return 0;
  };
  while (!containers_.empty() && std::visit(uses, containers_.back().value.data_) == 1) {
    held_ -= container_bytes(containers_.back().value);
    containers_.pop_back();
  }
}

void PickleDecoder::step_container(const Token& token) {
  switch (token.opcode) {
    case Opcode::kEmptyTuple:
      return push_new(Value::tuple());
    case Opcode::kTuple1:
    case Opcode::kTuple2:
    case Opcode::kTuple3:
      return push_new(Value::tuple(
          pop_last(1 + static_cast<size_t>(token.opcode) - static_cast<size_t>(Opcode::kTuple1))));
    case Opcode::kTuple:
      return push_new(Value::tuple(pop_to_mark()));
    case Opcode::kEmptyList:
      return push_new(Value::list());
    case Opcode::kList:
      return push_new(Value::list(pop_to_mark()));
    case Opcode::kEmptySet:
      return push_new(Value::set({}));
    case Opcode::kEmptyDict:
      return push_new(Value::dict());
    case Opcode::kAppend:
      return append(pop_last(1));
    case Opcode::kAppends:
    case Opcode::kAddItems:
      return append(pop_to_mark());
    case Opcode::kDict: {
      std::vector<Value> flat = pop_to_mark();
      push_new(Value::dict());
      return set_items(std::move(flat));
    }
    case Opcode::kSetItem:
      return set_items(pop_last(2));
    case Opcode::kSetItems:
      return set_items(pop_to_mark());
    default:
      return step_object(token);
  }
}

void PickleDecoder::append(std::vector<Value> items) {
  Value& target = top();
  std::vector<Value>* list = nullptr;
  if (target.kind() == Value::Kind::kList || target.kind() == Value::Kind::kSet) {
    list = &std::get<std::shared_ptr<Value::Sequence>>(target.data_)->items;
  } else if (target.is_object() && !is_storage(target)) {
    list = &std::get<std::shared_ptr<Value::Object>>(target.data_)->items;
  } else {
    target.fail("a list to append to");
  }
  reserve(*list, items.size());
  std::move(items.begin(), items.end(), std::back_inserter(*list));
}

void PickleDecoder::set_items(std::vector<Value> flat) {
  if (flat.size() % 2 != 0) throw DamagedFile("sets a key without a value");
  Value& target = top();
  std::vector<Value::Entry>* entries = nullptr;
  if (target.is_dict()) {
    entries = &std::get<std::shared_ptr<Value::Mapping>>(target.data_)->entries;
  } else if (target.is_object() && !is_storage(target)) {
    entries = &std::get<std::shared_ptr<Value::Object>>(target.data_)->entries;
  } else {
    target.fail("a dict to fill");
  }
  reserve(*entries, flat.size() / 2);
  for (size_t i = 0; i < flat.size(); i += 2) {
    entries->emplace_back(std::move(flat[i]), std::move(flat[i + 1]));
  }
}

template <typename Fn>
void PickleDecoder::for_each_child(const Value& value, Fn&& fn) {
  const auto each = [&fn](std::vector<Value>& items) {
    for (Value& item : items) fn(item);
  };
  const auto each_entry = [&fn](std::vector<Value::Entry>& entries) {
    for (auto& [key, item] : entries) {
      fn(key);
      fn(item);
    }
  };
  if (const auto* sequence = std::get_if<std::shared_ptr<Value::Sequence>>(&value.data_))
    each((*sequence)->items);
  if (const auto* mapping = std::get_if<std::shared_ptr<Value::Mapping>>(&value.data_))
    each_entry((*mapping)->entries);
  if (!value.is_object()) return;
  Value::Object& object = *std::get<std::shared_ptr<Value::Object>>(value.data_);
  each(object.args);
  each(object.items);
  each_entry(object.entries);
  if (object.state) fn(*object.state);
}

void PickleDecoder::check_tree(Value& root) {
  std::ranges::sort(containers_, {}, &Container::node);
  measure(root, 1);
  if (!ambiguous_) return;
  for (const Value& value : itself_)
    std::get<std::shared_ptr<Value::Object>>(value.data_)->args.clear();
}

// Refuses deep nesting, which bounds the recursion. Refuses a small file that stands for a huge
// tree because its lists share each other. Replaces a container inside itself by a stand-in, which
// makes the whole a tree.
PickleDecoder::Measured PickleDecoder::measure(Value& value, size_t depth) {
  const void* self = node(value);
  if (!self) return {};
  Container& container = *std::ranges::lower_bound(containers_, self, {}, &Container::node);
  if (container.measured) {
    ambiguous_ |= container.found.top < container.depth;
    return {container.found.values, container.found.height};
  }
  if (container.depth != 0) {
    value = stand_in(depth - container.depth);
    return {.top = container.depth};
  }
  if (is_storage(value)) expose_storage(value);
  if (value.is_dict()) check_keys(*value.find_entries());
  if (value.is_object()) check_keys(value.as_object().entries);
  container.depth = depth;
  Measured& found = container.found;
  found.height = 1;
  const auto add = [&](const Measured& child) {
    found.values += child.values;
    found.height = std::max(found.height, child.height + 1);
    found.top = std::min(found.top, child.top);
    // A shared list counts each time it is reached; honest files share little.
    if (found.values > limit_ / sizeof(Value))
      throw DamagedFile("stands for more values than memory could hold");
    if (depth + found.height > kMaxDepth)
      throw DamagedFile("nests deeper than " + std::to_string(kMaxDepth));
  };
  if (depth > kMaxDepth) add({.values = 0});
  for_each_child(value, [&](Value& child) { add(measure(child, depth + 1)); });
  container.measured = true;
  return found;
}

// Returns the stand-in for the container that is `levels` levels up.
Value PickleDecoder::stand_in(size_t levels) {
  hold(kShared<Value::Object> + 4 * block(sizeof(Value)));
  itself_.push_back(object(itself_type_, false, {static_cast<int64_t>(levels)}));
  return itself_.back();
}

// Releases the containers. Those outside the result are emptied while all are still held.
void PickleDecoder::forget(bool keep_reached) {
  for (const auto& [value, depth, measured, found] : containers_) {
    if (keep_reached && depth != 0) continue;
    if (value.is_object()) {
      *std::get<std::shared_ptr<Value::Object>>(value.data_) = {};
    } else if (value.is_dict()) {
      std::get<std::shared_ptr<Value::Mapping>>(value.data_)->entries.clear();
    } else {
      std::get<std::shared_ptr<Value::Sequence>>(value.data_)->items.clear();
    }
  }
  containers_.clear();
}

}  // namespace anymesh
