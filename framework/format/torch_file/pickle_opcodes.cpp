// The opcodes that occur in checkpoints, and what each of them does to the decoder.

#include <array>
#include <bit>

#include "framework/format/torch_file/pickle_decoder.h"
#include "framework/util/errors.h"

namespace anymesh {
namespace {

// How an operand is written: nothing, a number of so many bytes, a text behind its size of so many
// bytes, or the two lines of a class.
enum Form : uint8_t {
  kNothing = 0,
  kNumber1 = 0x11,
  kNumber2 = 0x12,
  kNumber4 = 0x14,
  kNumber8 = 0x18,
  kText1 = 0x21,
  kText4 = 0x24,
  kText8 = 0x28,
  kTwoLines = 0x30
};

}  // namespace

const PickleDecoder::Operation PickleDecoder::kOperations[] = {
    {Opcode::kStop, kNothing, nullptr},
    {Opcode::kProto, kNumber1, [](auto& d, auto& with) { d.check_protocol(with.number); }},
    {Opcode::kFrame, kNumber8, [](auto& d, auto& with) { d.check_rest(with.number); }},
    {Opcode::kMark, kNothing, [](auto& d, auto&) { d.mark(); }},
    {Opcode::kPop, kNothing, [](auto& d, auto&) { d.pop(); }},
    {Opcode::kPopMark, kNothing, [](auto& d, auto&) { d.pop_to_mark(); }},
    {Opcode::kDup, kNothing, [](auto& d, auto&) { d.push(d.top()); }},
    {Opcode::kBinPut, kNumber1, [](auto& d, auto& with) { d.memoize(with.number); }},
    {Opcode::kLongBinPut, kNumber4, [](auto& d, auto& with) { d.memoize(with.number); }},
    {Opcode::kMemoize, kNothing, [](auto& d, auto&) { d.memoize(d.memoized_); }},
    {Opcode::kBinGet, kNumber1, [](auto& d, auto& with) { d.push(d.recall(with.number)); }},
    {Opcode::kLongBinGet, kNumber4, [](auto& d, auto& with) { d.push(d.recall(with.number)); }},
    {Opcode::kNone, kNothing, [](auto& d, auto&) { d.push({}); }},
    {Opcode::kNewTrue, kNothing, [](auto& d, auto&) { d.push(true); }},
    {Opcode::kNewFalse, kNothing, [](auto& d, auto&) { d.push(false); }},
    {Opcode::kBinInt1, kNumber1,
     [](auto& d, auto& with) { d.push(static_cast<int64_t>(with.number)); }},
    {Opcode::kBinInt2, kNumber2,
     [](auto& d, auto& with) { d.push(static_cast<int64_t>(with.number)); }},
    {Opcode::kBinInt, kNumber4,
     [](auto& d, auto& with) { d.push(static_cast<int32_t>(with.number)); }},
    {Opcode::kLong1, kText1, [](auto& d, auto& with) { d.push_int(with.text); }},
    {Opcode::kLong4, kText4, [](auto& d, auto& with) { d.push_int(with.text); }},
    {Opcode::kBinFloat, kNumber8,
     [](auto& d, auto& with) { d.push(std::bit_cast<double>(__builtin_bswap64(with.number))); }},
    {Opcode::kShortBinUnicode, kText1, [](auto& d, auto& with) { d.push_text(with.text); }},
    {Opcode::kBinUnicode, kText4, [](auto& d, auto& with) { d.push_text(with.text); }},
    {Opcode::kBinUnicode8, kText8, [](auto& d, auto& with) { d.push_text(with.text); }},
    {Opcode::kShortBinString, kText1, [](auto& d, auto& with) { d.push_text(with.text); }},
    {Opcode::kBinString, kText4, [](auto& d, auto& with) { d.push_text(with.text); }},
    {Opcode::kShortBinBytes, kText1, [](auto& d, auto& with) { d.push(d.bytes(with.text)); }},
    {Opcode::kBinBytes, kText4, [](auto& d, auto& with) { d.push(d.bytes(with.text)); }},
    {Opcode::kBinBytes8, kText8, [](auto& d, auto& with) { d.push(d.bytes(with.text)); }},
    {Opcode::kByteArray8, kText8,
     [](auto& d, auto& with) { d.push_call("builtins", "bytearray", {d.bytes(with.text)}); }},
    {Opcode::kEmptyTuple, kNothing, [](auto& d, auto&) { d.push_new(Value::tuple()); }},
    {Opcode::kTuple1, kNothing, [](auto& d, auto&) { d.push_new(Value::tuple(d.pop_last(1))); }},
    {Opcode::kTuple2, kNothing, [](auto& d, auto&) { d.push_new(Value::tuple(d.pop_last(2))); }},
    {Opcode::kTuple3, kNothing, [](auto& d, auto&) { d.push_new(Value::tuple(d.pop_last(3))); }},
    {Opcode::kTuple, kNothing, [](auto& d, auto&) { d.push_new(Value::tuple(d.pop_to_mark())); }},
    {Opcode::kEmptyList, kNothing, [](auto& d, auto&) { d.push_new(Value::list()); }},
    {Opcode::kList, kNothing, [](auto& d, auto&) { d.push_new(Value::list(d.pop_to_mark())); }},
    {Opcode::kAppend, kNothing, [](auto& d, auto&) { d.append(d.pop_last(1)); }},
    {Opcode::kAppends, kNothing, [](auto& d, auto&) { d.append(d.pop_to_mark()); }},
    {Opcode::kEmptySet, kNothing, [](auto& d, auto&) { d.push_new(Value::set({})); }},
    {Opcode::kAddItems, kNothing, [](auto& d, auto&) { d.append(d.pop_to_mark()); }},
    {Opcode::kFrozenSet, kNothing, [](auto& d, auto&) { d.push_frozen_set(); }},
    {Opcode::kEmptyDict, kNothing, [](auto& d, auto&) { d.push_new(Value::dict()); }},
    {Opcode::kDict, kNothing, [](auto& d, auto&) { d.push_dict(); }},
    {Opcode::kSetItem, kNothing, [](auto& d, auto&) { d.set_items(d.pop_last(2)); }},
    {Opcode::kSetItems, kNothing, [](auto& d, auto&) { d.set_items(d.pop_to_mark()); }},
    {Opcode::kGlobal, kTwoLines,
     [](auto& d, auto& with) { d.push(d.global(with.text, with.name)); }},
    {Opcode::kStackGlobal, kNothing, [](auto& d, auto&) { d.push_stack_global(); }},
    {Opcode::kReduce, kNothing, [](auto& d, auto&) { d.push_new(d.pop_call(true)); }},
    {Opcode::kNewObj, kNothing, [](auto& d, auto&) { d.push_new(d.pop_call(false)); }},
    {Opcode::kNewObjEx, kNothing,
     [](auto& d, auto&) { d.push_call("copyreg", "__newobj_ex__", d.pop_last(3)); }},
    {Opcode::kBuild, kNothing, [](auto& d, auto&) { d.build(); }},
    {Opcode::kBinPersId, kNothing, [](auto& d, auto&) { d.push_new(d.storage(d.pop())); }},
};

const PickleDecoder::Operation& PickleDecoder::take_operation(Operand& operand) {
  static const auto kByCode = [] {
    std::array<const Operation*, 256> by_code{};
    for (const Operation& each : kOperations) by_code[static_cast<size_t>(each.opcode)] = &each;
    return by_code;
  }();
  const uint64_t code = take_uint(1);
  const Operation* const operation = kByCode[code];
  if (operation == nullptr)
    throw DamagedFile("holds the opcode " + std::to_string(code) + ", which no checkpoint has");
  const size_t width = operation->form & 0xF;
  operand = {};
  if (operation->form == kTwoLines) {
    operand.text = take_line();
    operand.name = take_line();
  } else if (operation->form >= kText1) {
    operand.text = take(take_uint(width));
  } else {
    operand.number = take_uint(width);
  }
  return *operation;
}

}  // namespace anymesh
