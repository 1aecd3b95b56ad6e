#include <bit>
#include <cstring>
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

  // False if it was not written before: then it is to be, and to be memoized.
  bool recall(const std::string& written) {
    const auto [known, is_new] = memo_.emplace(written, memo_.size());
    if (!is_new) memo_op(Opcode::kBinGet, Opcode::kLongBinGet, known->second);
    return !is_new;
  }

  void memo_op(Opcode narrow, Opcode wide, size_t index) {
    op(index <= UINT8_MAX ? narrow : wide);
    if (index <= UINT8_MAX) return raw(static_cast<uint8_t>(index));
    raw(static_cast<uint32_t>(index));
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
        return write_entries(*value.find_entries());
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
    if (recall('X' + text)) return;
    op(Opcode::kBinUnicode);
    raw(static_cast<uint32_t>(text.size()));
    out_ += text;
    memo_op(Opcode::kBinPut, Opcode::kLongBinPut, memo_.size() - 1);
  }

  void write_global(const std::string& module, const std::string& name) {
    if ((module + name).find('\n') != std::string::npos)
      throw ValueError("the class " + module + "." + name + " has a line break");
    const std::string text = module + '\n' + name + '\n';
    if (recall('c' + text)) return;
    op(Opcode::kGlobal);
    out_ += text;
    memo_op(Opcode::kBinPut, Opcode::kLongBinPut, memo_.size() - 1);
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
    write_items(items);
  }

  void write_items(const std::vector<Value>& items) {
    for (size_t first = 0; first < items.size(); first += kBatch) {
      op(Opcode::kMark);
      for (size_t i = first; i < std::min(first + kBatch, items.size()); ++i) write(items[i]);
      op(Opcode::kAppends);
    }
  }

  void write_entries(const std::vector<Value::Entry>& entries) {
    for (size_t first = 0; first < entries.size(); first += kBatch) {
      op(Opcode::kMark);
      for (size_t i = first; i < std::min(first + kBatch, entries.size()); ++i) {
        write(entries[i].first);
        write(entries[i].second);
      }
      op(Opcode::kSetItems);
    }
  }

  void write_ordered_dict(const std::vector<Value::Entry>& entries) {
    write_global("collections", "OrderedDict");
    op(Opcode::kEmptyTuple);
    op(Opcode::kReduce);
    write_entries(entries);
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
    write_items(object.items);
    write_entries(object.entries);
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
