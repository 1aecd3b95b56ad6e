#include <algorithm>
#include <array>
#include <bit>
#include <unordered_map>

#include "framework/checkpoint/format/pickle.h"
#include "framework/checkpoint/format/pickle_opcodes.h"

namespace anymesh {
namespace {

constexpr size_t kBatch = 1000;  // items of one SETITEMS or APPENDS, as Python's pickler has it

std::string utf8_from_latin1(const std::string& bytes) {
  std::string text;
  for (const char c : bytes) {
    const auto code = static_cast<unsigned char>(c);
    if (code < 0x80) {
      text += c;
    } else {
      text += static_cast<char>(0xC0 | code >> 6);
      text += static_cast<char>(0x80 | (code & 0x3F));
    }
  }
  return text;
}

}  // namespace

// Protocol 2. Texts and classes are written once and then recalled from the memo; other values that
// are shared are written again, except storages, which are shared by key.
class PickleEncoder {
 public:
  explicit PickleEncoder(const StoreTensor& store_tensor) : store_tensor_(store_tensor) {}

  std::string run(const Value& value) {
    op(Opcode::kProto);
    out_ += '\2';
    write(value);
    op(Opcode::kStop);
    return std::move(out_);
  }

 private:
  void op(Opcode opcode) { out_ += static_cast<char>(opcode); }

  template <typename T>
  void raw(T value) {
    out_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }

  // An opcode and its text: the first time in full, then by its number in the memo.
  void write_once(const std::string& text) {
    const auto [known, is_new] = memo_.emplace(text, memo_.size());
    const size_t index = known->second;
    if (is_new) out_ += text;
    if (index <= UINT8_MAX) {
      op(is_new ? Opcode::kBinPut : Opcode::kBinGet);
      raw(static_cast<uint8_t>(index));
    } else {
      op(is_new ? Opcode::kLongBinPut : Opcode::kLongBinGet);
      raw(static_cast<uint32_t>(index));
    }
  }

  void write(const Value& value) {
    using Kind = Value::Kind;
    switch (value.kind()) {
      case Kind::kNone:
        return op(Opcode::kNone);
      case Kind::kBool:
        return op(value.as_bool() ? Opcode::kNewTrue : Opcode::kNewFalse);
      case Kind::kInt:
        return write_int(value.as_int());
      case Kind::kBigInt:
        return write_long(value.raw());
      case Kind::kFloat:
        op(Opcode::kBinFloat);
        return raw(__builtin_bswap64(std::bit_cast<uint64_t>(value.as_double())));
      case Kind::kString:
        return write_text(value.as_string());
      case Kind::kBytes:
        write_global("_codecs", "encode");
        write_tuple({utf8_from_latin1(value.as_bytes()), "latin1"});
        return op(Opcode::kReduce);
      case Kind::kList:
        return write_list(*value.find_items());
      case Kind::kTuple:
        return write_tuple(*value.find_items());
      case Kind::kSet:
        write_global("__builtin__", "set");
        write_list(*value.find_items());
        op(Opcode::kTuple1);
        return op(Opcode::kReduce);
      case Kind::kSize:
        write_global("torch", "Size");
        write_tuple(*value.find_items());
        op(Opcode::kTuple1);
        return op(Opcode::kReduce);
      case Kind::kDict:
        op(Opcode::kEmptyDict);
        return write_batches(*value.find_entries(), Opcode::kSetItems);
      case Kind::kOrderedDict:
        return write_ordered_dict(*value.find_entries());
      case Kind::kTensor:
        return write_tensor(value.as_tensor());
      case Kind::kGlobal:
        return write_global(value.as_global().module, value.as_global().name);
      case Kind::kObject:
        return write_object(value.as_object());
    }
  }

  void write_int(int64_t value) {
    if (value >= 0 && value <= UINT8_MAX) {
      op(Opcode::kBinInt1);
      raw(static_cast<uint8_t>(value));
    } else if (value >= 0 && value <= UINT16_MAX) {
      op(Opcode::kBinInt2);
      raw(static_cast<uint16_t>(value));
    } else if (value >= INT32_MIN && value <= INT32_MAX) {
      op(Opcode::kBinInt);
      raw(static_cast<int32_t>(value));
    } else {
      std::string bytes(reinterpret_cast<const char*>(&value), sizeof value);
      // The shortest that keeps the sign.
      const char sign = value < 0 ? '\xFF' : '\0';
      while (bytes.back() == sign && ((bytes[bytes.size() - 2] ^ sign) & 0x80) == 0)
        bytes.pop_back();
      write_long(bytes);
    }
  }

  void write_long(const std::string& two_complement) {
    if (two_complement.size() <= UINT8_MAX) {
      op(Opcode::kLong1);
      raw(static_cast<uint8_t>(two_complement.size()));
    } else {
      op(Opcode::kLong4);
      raw(static_cast<uint32_t>(two_complement.size()));
    }
    out_ += two_complement;
  }

  void write_text(const std::string& text) {
    if (text.size() > UINT32_MAX) throw ValueError("a string of more than 4 GiB cannot be written");
    const auto size = std::bit_cast<std::array<char, 4>>(static_cast<uint32_t>(text.size()));
    write_once('X' + std::string(size.data(), size.size()) + text);
  }

  void write_global(const std::string& module, const std::string& name) {
    if ((module + name).find('\n') != std::string::npos)
      throw ValueError("the class " + module + "." + name + " has a line break");
    write_once('c' + module + '\n' + name + '\n');
  }

  void write_tuple(const std::vector<Value>& items) {
    if (items.empty()) return op(Opcode::kEmptyTuple);
    if (items.size() > 3) op(Opcode::kMark);
    for (const Value& item : items) write(item);
    constexpr Opcode kShort[] = {Opcode::kTuple1, Opcode::kTuple2, Opcode::kTuple3};
    op(items.size() > 3 ? Opcode::kTuple : kShort[items.size() - 1]);
  }

  void write_list(const std::vector<Value>& items) {
    op(Opcode::kEmptyList);
    write_batches(items, Opcode::kAppends);
  }

  void write_ordered_dict(const std::vector<Value::Entry>& entries) {
    write_global("collections", "OrderedDict");
    op(Opcode::kEmptyTuple);
    op(Opcode::kReduce);
    write_batches(entries, Opcode::kSetItems);
  }

  void write(const Value::Entry& entry) {
    write(entry.first);
    write(entry.second);
  }

  template <typename Item>
  void write_batches(const std::vector<Item>& items, Opcode end_of_batch) {
    for (size_t first = 0; first < items.size(); first += kBatch) {
      op(Opcode::kMark);
      for (size_t i = first; i < std::min(first + kBatch, items.size()); ++i) write(items[i]);
      op(end_of_batch);
    }
  }

  // _rebuild_tensor_v2(storage, offset, sizes, strides, requires_grad, hooks)
  void write_tensor(const TensorRecord& tensor) {
    write_global("torch._utils", "_rebuild_tensor_v2");
    op(Opcode::kMark);
    op(Opcode::kMark);
    write_text("storage");
    write_global("torch", std::string(storage_class(tensor.dtype)));
    write_text(store_tensor_(tensor));
    write_text("cpu");
    write_int(tensor.numel());
    op(Opcode::kTuple);
    op(Opcode::kBinPersId);
    write_int(0);
    const Shape strides = contiguous_strides(tensor.shape);
    write_tuple({tensor.shape.begin(), tensor.shape.end()});
    write_tuple({strides.begin(), strides.end()});
    op(tensor.requires_grad ? Opcode::kNewTrue : Opcode::kNewFalse);
    write_ordered_dict({});
    op(Opcode::kTuple);
    op(Opcode::kReduce);
  }

  void write_object(const Value::Object& object) {
    write_global(object.type->module, object.type->name);
    write_tuple(object.args);
    op(object.call ? Opcode::kReduce : Opcode::kNewObj);
    write_batches(object.items, Opcode::kAppends);
    write_batches(object.entries, Opcode::kSetItems);
    if (object.state) {
      write(*object.state);
      op(Opcode::kBuild);
    }
  }

  const StoreTensor& store_tensor_;
  std::string out_;
  std::unordered_map<std::string, size_t> memo_;  // of opcodes and their texts
};

std::string encode_pickle(const Value& value, const StoreTensor& store_tensor) {
  return PickleEncoder(store_tensor).run(value);
}

}  // namespace anymesh
