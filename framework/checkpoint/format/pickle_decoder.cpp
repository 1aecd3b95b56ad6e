#include "framework/checkpoint/format/pickle_decoder.h"

#include <bit>
#include <cstring>
#include <iterator>

namespace anymesh {
namespace {

Value int_of(std::string two_complement) {
  if (two_complement.size() > 8) return Value::big_int(std::move(two_complement));
  const bool negative =
      !two_complement.empty() && static_cast<signed char>(two_complement.back()) < 0;
  two_complement.resize(8, negative ? '\xFF' : '\0');
  int64_t value;
  std::memcpy(&value, two_complement.data(), 8);
  return value;
}

}  // namespace

Value PickleDecoder::run() {
  while (step()) {
  }
  if (stack_.size() != 1) {
    throw ValueError("leaves " + std::to_string(stack_.size()) + " values, expected one");
  }
  Value root = std::move(stack_.back());
  stack_.clear();
  memo_.clear();
  forget(check_tree(root));
  return root;
}

// Counts memory that stays taken until the end.
void PickleDecoder::hold(uint64_t bytes) {
  held_ += bytes;
  if (held_ > limit_) {
    throw ValueError("takes more than " + std::to_string(limit_) +
                     " bytes of memory, too much for the size of its file");
  }
}

// What a copy of a value takes beside the Value itself: containers are shared.
uint64_t PickleDecoder::copied_bytes(const Value& value) {
  switch (value.kind()) {
    case Value::Kind::kString:
      return value.as_string().size();
    case Value::Kind::kBytes:
    case Value::Kind::kBigInt:
      return std::get<Value::Raw>(value.data_).data.size();
    case Value::Kind::kGlobal:
      return value.as_global().module.size() + value.as_global().name.size();
    default:
      return 0;
  }
}

void PickleDecoder::push(Value value) {
  hold(copied_bytes(value));
  if (stack_.size() >= deepest_) {
    hold(kGrownValueBytes);
    ++deepest_;
  }
  stack_.push_back(std::move(value));
}

void PickleDecoder::memoize(uint64_t index) {
  hold(kMemoBytes + copied_bytes(top()));
  memo_.insert_or_assign(index, top());
}

void PickleDecoder::check_rest(uint64_t count) const {
  if (count > input_.size() - position_) {
    throw ValueError("wants " + std::to_string(count) + " bytes, has " +
                     std::to_string(input_.size() - position_));
  }
}

std::span<const std::byte> PickleDecoder::take(uint64_t count) {
  check_rest(count);
  const auto bytes = input_.subspan(position_, count);
  position_ += count;
  return bytes;
}

uint64_t PickleDecoder::take_uint(size_t width) {
  uint64_t value = 0;
  std::memcpy(&value, take(width).data(), width);
  return value;
}

std::string PickleDecoder::take_text(uint64_t size) {
  const auto bytes = take(size);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string PickleDecoder::take_line() {
  const auto rest = input_.subspan(position_);
  const auto end = std::find(rest.begin(), rest.end(), std::byte{'\n'});
  if (end == rest.end()) throw ValueError("a name does not end");
  std::string line = take_text(static_cast<uint64_t>(end - rest.begin()));
  take(1);
  return line;
}

// What lies below the last mark is out of reach until the mark is gone.
Value& PickleDecoder::top() {
  const size_t floor = marks_.empty() ? 0 : marks_.back();
  if (stack_.size() <= floor) throw ValueError("takes from an empty stack");
  return stack_.back();
}

Value PickleDecoder::pop() {
  Value value = std::move(top());
  stack_.pop_back();
  return value;
}

std::vector<Value> PickleDecoder::pop_to_mark() {
  if (marks_.empty()) throw ValueError("has no mark to go back to");
  const size_t mark = marks_.back();
  std::vector<Value> values = pop_last(stack_.size() - mark);
  marks_.pop_back();
  return values;
}

std::vector<Value> PickleDecoder::pop_last(size_t count) {
  std::vector<Value> values(count);
  for (size_t i = count; i-- > 0;) values[i] = pop();
  return values;
}

const Value& PickleDecoder::recall(uint64_t index) const {
  const auto found = memo_.find(index);
  if (found != memo_.end()) return found->second;
  throw ValueError("recalls " + std::to_string(index) + ", which was never memoized");
}

void PickleDecoder::push_sequence(Value::Kind kind, std::vector<Value> items) {
  hold(kContainerBytes + items.size() * kValueBytes);
  sequences_.push_back(std::make_shared<Value::Sequence>(Value::Sequence{kind, std::move(items)}));
  Value value;
  value.data_ = sequences_.back();
  push(std::move(value));
}

void PickleDecoder::push_mapping(Value::Kind kind) {
  hold(kContainerBytes);
  mappings_.push_back(std::make_shared<Value::Mapping>(Value::Mapping{kind, {}}));
  Value value;
  value.data_ = mappings_.back();
  push(std::move(value));
}

void PickleDecoder::push_object(Value::Object object) {
  hold(kObjectBytes);
  objects_.push_back(std::make_shared<Value::Object>(std::move(object)));
  Value value;
  value.data_ = objects_.back();
  push(std::move(value));
}

bool PickleDecoder::step() {
  const auto opcode = static_cast<Opcode>(take_uint(1));
  if (opcode == Opcode::kStop) return false;
  if (auto scalar = read_scalar(opcode)) {
    push(std::move(*scalar));
  } else if (!step_memo(opcode) && !step_new_container(opcode) && !step_fill(opcode) &&
             !step_object(opcode)) {
    throw ValueError("holds the opcode " + std::to_string(static_cast<int>(opcode)) +
                     ", which no checkpoint has");
  }
  return true;
}

std::optional<Value> PickleDecoder::read_scalar(Opcode opcode) {
  switch (opcode) {
    case Opcode::kNone:
      return Value();
    case Opcode::kNewTrue:
      return true;
    case Opcode::kNewFalse:
      return false;
    case Opcode::kBinInt1:
      return static_cast<int64_t>(take_uint(1));
    case Opcode::kBinInt2:
      return static_cast<int64_t>(take_uint(2));
    case Opcode::kBinInt:
      return int64_t{static_cast<int32_t>(take_uint(4))};
    case Opcode::kLong1:
      return int_of(take_text(take_uint(1)));
    case Opcode::kLong4:
      return int_of(take_text(take_uint(4)));
    case Opcode::kBinFloat:
      return std::bit_cast<double>(__builtin_bswap64(take_uint(8)));
    case Opcode::kShortBinUnicode:
    case Opcode::kShortBinString:
      return take_text(take_uint(1));
    case Opcode::kBinUnicode:
    case Opcode::kBinString:
      return take_text(take_uint(4));
    case Opcode::kBinUnicode8:
      return take_text(take_uint(8));
    case Opcode::kShortBinBytes:
      return Value::bytes(take_text(take_uint(1)));
    case Opcode::kBinBytes:
      return Value::bytes(take_text(take_uint(4)));
    case Opcode::kBinBytes8:
      return Value::bytes(take_text(take_uint(8)));
    default:
      return std::nullopt;
  }
}

bool PickleDecoder::step_memo(Opcode opcode) {
  switch (opcode) {
    case Opcode::kProto:
      if (const uint64_t version = take_uint(1); version < 2 || version > 5) {
        throw ValueError("is of protocol " + std::to_string(version) + ", expected 2 to 5");
      }
      return true;
    case Opcode::kFrame:
      check_rest(take_uint(8));
      return true;
    case Opcode::kMark:
      hold(3 * sizeof(size_t));
      marks_.push_back(stack_.size());
      return true;
    case Opcode::kPop:
      pop();
      return true;
    case Opcode::kPopMark:
      pop_to_mark();
      return true;
    case Opcode::kDup:
      push(top());
      return true;
    case Opcode::kBinPut:
      memoize(take_uint(1));
      return true;
    case Opcode::kLongBinPut:
      memoize(take_uint(4));
      return true;
    case Opcode::kMemoize:
      memoize(memo_.size());
      return true;
    case Opcode::kBinGet:
      push(recall(take_uint(1)));
      return true;
    case Opcode::kLongBinGet:
      push(recall(take_uint(4)));
      return true;
    default:
      return false;
  }
}

bool PickleDecoder::step_new_container(Opcode opcode) {
  using Kind = Value::Kind;
  switch (opcode) {
    case Opcode::kEmptyTuple:
      push_sequence(Kind::kTuple, {});
      return true;
    case Opcode::kTuple1:
      push_sequence(Kind::kTuple, pop_last(1));
      return true;
    case Opcode::kTuple2:
      push_sequence(Kind::kTuple, pop_last(2));
      return true;
    case Opcode::kTuple3:
      push_sequence(Kind::kTuple, pop_last(3));
      return true;
    case Opcode::kTuple:
      push_sequence(Kind::kTuple, pop_to_mark());
      return true;
    case Opcode::kEmptyList:
      push_sequence(Kind::kList, {});
      return true;
    case Opcode::kList:
      push_sequence(Kind::kList, pop_to_mark());
      return true;
    case Opcode::kEmptySet:
      push_sequence(Kind::kSet, {});
      return true;
    case Opcode::kEmptyDict:
      push_mapping(Kind::kDict);
      return true;
    default:
      return false;
  }
}

bool PickleDecoder::step_fill(Opcode opcode) {
  switch (opcode) {
    case Opcode::kAppend:
      append(pop_last(1));
      return true;
    case Opcode::kAppends:
    case Opcode::kAddItems:
      append(pop_to_mark());
      return true;
    case Opcode::kDict: {
      std::vector<Value> flat = pop_to_mark();
      push_mapping(Value::Kind::kDict);
      set_items(std::move(flat));
      return true;
    }
    case Opcode::kSetItem:
      set_items(pop_last(2));
      return true;
    case Opcode::kSetItems:
      set_items(pop_to_mark());
      return true;
    default:
      return false;
  }
}

void PickleDecoder::append(std::vector<Value> items) {
  hold(items.size() * kGrownValueBytes);
  Value& target = top();
  std::vector<Value>* list = nullptr;
  if (target.kind() == Value::Kind::kList || target.kind() == Value::Kind::kSet) {
    list = &std::get<std::shared_ptr<Value::Sequence>>(target.data_)->items;
  } else if (target.is_object() && !is_storage(target)) {
    list = &std::get<std::shared_ptr<Value::Object>>(target.data_)->items;
  } else {
    target.fail("a list to append to");
  }
  std::move(items.begin(), items.end(), std::back_inserter(*list));
}

void PickleDecoder::set_items(std::vector<Value> flat) {
  if (flat.size() % 2 != 0) throw ValueError("sets a key without a value");
  hold(flat.size() * kGrownValueBytes);
  Value& target = top();
  std::vector<Value::Entry>* entries = nullptr;
  if (target.is_dict()) {
    entries = &std::get<std::shared_ptr<Value::Mapping>>(target.data_)->entries;
  } else if (target.is_object() && !is_storage(target)) {
    entries = &std::get<std::shared_ptr<Value::Object>>(target.data_)->entries;
  } else {
    target.fail("a dict to fill");
  }
  for (size_t i = 0; i < flat.size(); i += 2) {
    entries->emplace_back(std::move(flat[i]), std::move(flat[i + 1]));
  }
}

// Lets go of all containers. Those outside the result are emptied while all are still held, so that
// no chain of destructors can get deep.
void PickleDecoder::forget(const Reached& reached) {
  for (auto& sequence : sequences_) {
    if (!reached.contains(sequence.get())) sequence->items.clear();
  }
  for (auto& mapping : mappings_) {
    if (!reached.contains(mapping.get())) mapping->entries.clear();
  }
  for (auto& object : objects_) {
    if (!reached.contains(object.get())) *object = {};
  }
  sequences_.clear();
  mappings_.clear();
  objects_.clear();
}

Value decode_pickle(std::span<const std::byte> pickle, const OpenStorage& open_storage,
                    const std::string& file, uint64_t file_size) {
  PickleDecoder decoder(pickle, open_storage, file_size);
  try {
    return decoder.run().named(file);
  } catch (const std::exception& error) {
    throw ValueError(file + ": pickle at byte " + std::to_string(decoder.position()) + ": " +
                     error.what());
  }
}

}  // namespace anymesh
