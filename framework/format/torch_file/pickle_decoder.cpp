#include "framework/format/torch_file/pickle_decoder.h"

#include <cstring>
#include <iterator>

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

Value PickleDecoder::run() {
  find_recalled();
  Operand operand;
  while (const auto run = take_operation(operand).run) run(*this, operand);
  if (stack_.size() != 1) {
    throw DamagedFile("leaves " + std::to_string(stack_.size()) + " values, expected one");
  }
  Value root = pop();
  memo_.clear();
  check_tree(root);
  itself_.clear();
  forget(true);
  return root;
}

void PickleDecoder::hold(uint64_t bytes) {
  held_ += bytes;
  if (held_ > limit_) {
    throw DamagedFile("takes more than " + std::to_string(limit_) +
                      " bytes of memory, too much for the size of its file");
  }
}

void PickleDecoder::check_rest(uint64_t count) const {
  if (count > input_.size() - position_) {
    throw DamagedFile("wants " + std::to_string(count) + " bytes, has " +
                      std::to_string(input_.size() - position_));
  }
}

std::string_view PickleDecoder::take(uint64_t count) {
  check_rest(count);
  const auto bytes = input_.subspan(position_, count);
  position_ += count;
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

uint64_t PickleDecoder::take_uint(size_t width) {
  uint64_t value = 0;
  std::memcpy(&value, take(width).data(), width);
  return value;
}

std::string_view PickleDecoder::take_line() {
  const auto rest = input_.subspan(position_);
  const auto end = std::find(rest.begin(), rest.end(), std::byte{'\n'});
  if (end == rest.end()) throw DamagedFile("a name does not end");
  const auto line = take(static_cast<uint64_t>(end - rest.begin()));
  take(1);
  return line;
}

void PickleDecoder::push(Value value) {
  if (stack_.size() >= deepest_) {
    hold(3 * sizeof(Value));  // a growing vector exists twice
    ++deepest_;
  }
  stack_.push_back(std::move(value));
}

// Values below the last mark are out of reach until the mark is gone.
Value& PickleDecoder::top() {
  const size_t floor = marks_.empty() ? 0 : marks_.back();
  if (stack_.size() <= floor) throw DamagedFile("takes from an empty stack");
  return stack_.back();
}

Value PickleDecoder::pop() {
  Value value = std::move(top());
  stack_.pop_back();
  return value;
}

std::vector<Value> PickleDecoder::pop_to_mark() {
  if (marks_.empty()) throw DamagedFile("has no mark to go back to");
  std::vector<Value> values = pop_last(stack_.size() - marks_.back());
  marks_.pop_back();
  return values;
}

std::vector<Value> PickleDecoder::pop_last(size_t count) {
  std::vector<Value> values(count);
  for (size_t i = count; i-- > 0;) values[i] = pop();
  return values;
}

// Counts the recalls of each memo entry. Python memoizes every container and string but recalls
// few, so only those are kept, until their last recall. Malformed opcodes are left to the second
// pass, which may find an earlier error.
void PickleDecoder::find_recalled() {
  try {
    Operand operand;
    for (Opcode next{}; next != Opcode::kStop; next = take_operation(operand).opcode) {
      if (next != Opcode::kBinGet && next != Opcode::kLongBinGet) continue;
      if (memo_[operand.number].recalls++ == 0)
        hold(kShared<decltype(memo_)::value_type> + kBucket);
    }
  } catch (const DamagedFile&) {
  }
  position_ = 0;
}

void PickleDecoder::memoize(uint64_t index) {
  const Value& value = top();
  if (const auto recalled = memo_.find(index); recalled != memo_.end()) {
    recalled->second.value = value;
    recalled->second.known = true;
  }
  ++memoized_;
}

Value PickleDecoder::recall(uint64_t index) {
  const auto found = memo_.find(index);
  if (found == memo_.end() || !found->second.known)
    throw DamagedFile("recalls " + std::to_string(index) + ", which was never memoized");
  Value value = found->second.value;
  if (--found->second.recalls == 0) {
    memo_.erase(found);
    held_ -= kShared<decltype(memo_)::value_type>;
  }
  return value;
}

void PickleDecoder::check_protocol(uint64_t protocol) {
  if (protocol < 2 || protocol > 5)
    throw DamagedFile("is of protocol " + std::to_string(protocol) + ", expected 2 to 5");
}

void PickleDecoder::mark() {
  hold(3 * sizeof(size_t));
  marks_.push_back(stack_.size());
}

void PickleDecoder::push_int(std::string_view two_complement) {
  if (two_complement.size() > 8) {
    hold(kShared<Value::Raw> + text_bytes(two_complement.size()));
    return push(Value::big_int(std::string(two_complement)));
  }
  const bool negative =
      !two_complement.empty() && static_cast<signed char>(two_complement.back()) < 0;
  int64_t value = negative ? -1 : 0;
  std::memcpy(&value, two_complement.data(), two_complement.size());
  push(value);
}

void PickleDecoder::push_text(std::string_view text) {
  hold(kShared<std::string> + text_bytes(text.size()));
  push(text);
}

Value PickleDecoder::bytes(std::string_view content) {
  hold(kShared<Value::Raw> + text_bytes(content.size()));
  return Value::bytes(std::string(content));
}

// A torch.Size does not count as a container: it holds only a few integers.
const void* PickleDecoder::node(const Value& value) {
  if (value.is_object()) return &value.as_object();
  if (value.is_dict()) return value.find_entries();
  return value.kind() == Value::Kind::kSize ? nullptr : value.find_items();
}

uint64_t PickleDecoder::container_bytes(const Value& value) {
  uint64_t items = 0;
  value.for_each_child([&items](const Value&) { items += sizeof(Value); });
  const uint64_t shared = value.is_object() ? kShared<Value::Object>
                          : value.is_dict() ? kShared<Value::Mapping>
                                            : kShared<Value::Sequence>;
  return sizeof(Container) + 16 + shared + block(items);  // 16: its share of the deque, a pointer
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

void PickleDecoder::append(std::vector<Value> items) {
  Value& target = top();
  const bool is_list = target.is_list() || target.kind() == Value::Kind::kSet;
  auto& list = is_list ? std::get<std::shared_ptr<Value::Sequence>>(target.data_)->items
                       : object_of(target, "a list to append to").items;
  reserve(list, items.size());
  std::move(items.begin(), items.end(), std::back_inserter(list));
}

void PickleDecoder::set_items(std::vector<Value> flat) {
  if (flat.size() % 2 != 0) throw DamagedFile("sets a key without a value");
  Value& target = top();
  auto& entries = target.is_dict()
                      ? std::get<std::shared_ptr<Value::Mapping>>(target.data_)->entries
                      : object_of(target, "a dict to fill").entries;
  reserve(entries, flat.size() / 2);
  for (size_t i = 0; i < flat.size(); i += 2)
    entries.emplace_back(std::move(flat[i]), std::move(flat[i + 1]));
}

void PickleDecoder::push_dict() {
  std::vector<Value> flat = pop_to_mark();
  push_new(Value::dict());
  set_items(std::move(flat));
}

void PickleDecoder::check_tree(Value& root) {
  by_node_.reserve(containers_.size());
  for (Container& container : containers_) by_node_.push_back(&container);
  std::ranges::sort(by_node_, {}, &Container::node);
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
  Container& container = **std::ranges::lower_bound(by_node_, self, {}, &Container::node);
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
  value.for_each_child([&](Value& child) { add(measure(child, depth + 1)); });
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

Value decode_pickle(std::span<const std::byte> pickle, const OpenStorage& open_storage,
                    const std::string& file, uint64_t memory) {
  PickleDecoder decoder(pickle, open_storage, memory);
  try {
    return decoder.run().named(file);
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    throw DamagedFile(file + ": pickle at byte " + std::to_string(decoder.position()) + ": " +
                      error.what());
  }
}

}  // namespace anymesh
