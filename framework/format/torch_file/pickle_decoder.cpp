#include "framework/format/torch_file/pickle_decoder.h"

#include <bit>
#include <cstring>

#include "framework/util/errors.h"

namespace anymesh {
namespace {

Value int_of(std::string_view two_complement) {
  if (two_complement.size() > 8) return Value::big_int(std::string(two_complement));
  const bool negative =
      !two_complement.empty() && static_cast<signed char>(two_complement.back()) < 0;
  int64_t value = negative ? -1 : 0;
  std::memcpy(&value, two_complement.data(), two_complement.size());
  return value;
}

}  // namespace

Value PickleDecoder::run() {
  find_recalled();
  for (Token token = next(); token.opcode != Opcode::kStop; token = next()) step(token);
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

PickleDecoder::Token PickleDecoder::next() {
  const auto opcode = static_cast<Opcode>(take_uint(1));
  const auto number = [&](size_t width) { return Token{opcode, take_uint(width)}; };
  const auto text = [&](size_t width) { return Token{opcode, 0, take(take_uint(width))}; };
  switch (opcode) {
    case Opcode::kProto:
    case Opcode::kBinPut:
    case Opcode::kBinGet:
    case Opcode::kBinInt1:
      return number(1);
    case Opcode::kBinInt2:
      return number(2);
    case Opcode::kLongBinPut:
    case Opcode::kLongBinGet:
    case Opcode::kBinInt:
      return number(4);
    case Opcode::kBinFloat:
      return number(8);
    case Opcode::kFrame:
      check_rest(take_uint(8));
      return {opcode};
    case Opcode::kLong1:
    case Opcode::kShortBinUnicode:
    case Opcode::kShortBinString:
    case Opcode::kShortBinBytes:
      return text(1);
    case Opcode::kLong4:
    case Opcode::kBinUnicode:
    case Opcode::kBinString:
    case Opcode::kBinBytes:
      return text(4);
    case Opcode::kBinUnicode8:
    case Opcode::kBinBytes8:
    case Opcode::kByteArray8:
      return text(8);
    case Opcode::kGlobal: {
      const auto module = take_line();
      return {opcode, 0, module, take_line()};
    }
    default:
      return {opcode};
  }
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
    for (Token token = next(); token.opcode != Opcode::kStop; token = next()) {
      if (token.opcode != Opcode::kBinGet && token.opcode != Opcode::kLongBinGet) continue;
      if (memo_[token.number].recalls++ == 0) hold(kShared<decltype(memo_)::value_type> + kBucket);
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

void PickleDecoder::step(const Token& token) {
  switch (token.opcode) {
    case Opcode::kProto:
      if (token.number < 2 || token.number > 5) {
        throw DamagedFile("is of protocol " + std::to_string(token.number) + ", expected 2 to 5");
      }
      return;
    case Opcode::kFrame:
      return;
    case Opcode::kMark:
      hold(3 * sizeof(size_t));
      return marks_.push_back(stack_.size());
    case Opcode::kPop:
      pop();
      return;
    case Opcode::kPopMark:
      pop_to_mark();
      return;
    case Opcode::kDup:
      return push(top());
    case Opcode::kBinPut:
    case Opcode::kLongBinPut:
      return memoize(token.number);
    case Opcode::kMemoize:
      return memoize(memoized_);
    case Opcode::kBinGet:
    case Opcode::kLongBinGet:
      return push(recall(token.number));
    default:
      return step_scalar(token);
  }
}

void PickleDecoder::step_scalar(const Token& token) {
  switch (token.opcode) {
    case Opcode::kNone:
      return push({});
    case Opcode::kNewTrue:
      return push(true);
    case Opcode::kNewFalse:
      return push(false);
    case Opcode::kBinInt1:
    case Opcode::kBinInt2:
      return push(static_cast<int64_t>(token.number));
    case Opcode::kBinInt:
      return push(static_cast<int32_t>(token.number));
    case Opcode::kLong1:
    case Opcode::kLong4:
      if (token.text.size() > 8) hold(kShared<Value::Raw> + text_bytes(token.text.size()));
      return push(int_of(token.text));
    case Opcode::kBinFloat:
      return push(std::bit_cast<double>(__builtin_bswap64(token.number)));
    case Opcode::kShortBinUnicode:
    case Opcode::kShortBinString:
    case Opcode::kBinUnicode:
    case Opcode::kBinString:
    case Opcode::kBinUnicode8:
      hold(kShared<std::string> + text_bytes(token.text.size()));
      return push(token.text);
    case Opcode::kShortBinBytes:
    case Opcode::kBinBytes:
    case Opcode::kBinBytes8:
      hold(kShared<Value::Raw> + text_bytes(token.text.size()));
      return push(Value::bytes(std::string(token.text)));
    default:
      return step_container(token);
  }
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
