#include <algorithm>
#include <array>
#include <bit>
#include <unordered_map>

#include "framework/format/torch_file/pickle.h"
#include "framework/format/torch_file/pickle_opcodes.h"
#include "framework/util/errors.h"
#include "framework/util/printable.h"
#include "framework/util/utf8.h"

namespace anymesh {
namespace {

constexpr size_t kBatch = 1000;  // items per SETITEMS or APPENDS, as in Python's pickler

std::string utf8_from_latin1(const std::string& bytes) {
  std::string text;
  for (const char c : bytes) text += encode_utf8(static_cast<unsigned char>(c));
  return text;
}

}  // namespace

// Writes protocol 2. Texts and classes are written once and then recalled from the memo, and so is
// a container inside itself. Other shared values are written again, except storages, which are
// shared by key.
class PickleEncoder {
 public:
  explicit PickleEncoder(const StoreTensor& store_tensor) : store_tensor_(store_tensor) {}

  std::string run(const Value& value) {
    recursive_ = holds_itself(value);
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

  void put(size_t index) { sized_op(Opcode::kBinPut, Opcode::kLongBinPut, index); }
  void get(size_t index) { sized_op(Opcode::kBinGet, Opcode::kLongBinGet, index); }
  void sized_op(Opcode narrow, Opcode wide, size_t number) {
    op(number <= UINT8_MAX ? narrow : wide);
    number <= UINT8_MAX ? raw(static_cast<uint8_t>(number)) : raw(static_cast<uint32_t>(number));
  }

  // Writes an opcode and its text in full the first time, and their number in the memo after that.
  void write_once(const std::string& text) {
    const auto [known, is_new] = memo_.emplace(text, next_);
    if (!is_new) return get(known->second);
    out_ += text;
    put(next_++);
  }

  // Memoizes the container that is being written. It exists but is still empty.
  void remember() {
    if (!recursive_) return;
    open_.back() = next_;
    put(next_++);
  }

  void write(const Value& value) {
    open_.push_back(kUnknown);
    write_content(value);
    open_.pop_back();
  }

  void write_content(const Value& value) {
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
        return write_call("_codecs", "encode", {utf8_from_latin1(value.as_bytes()), "latin1"});
      case Kind::kList:
        op(Opcode::kEmptyList);
        remember();
        return write_batches(*value.find_items(), Opcode::kAppends);
      case Kind::kTuple:
        return write_tuple(*value.find_items());
      case Kind::kSet:
        write_global("__builtin__", "set");
        op(Opcode::kEmptyList);
        write_batches(*value.find_items(), Opcode::kAppends);
        op(Opcode::kTuple1);
        return op(Opcode::kReduce);
      case Kind::kSize:
        return write_call("torch", "Size", {Value::tuple(*value.find_items())});
      case Kind::kDict:
        op(Opcode::kEmptyDict);
        remember();
        return write_batches(*value.find_entries(), Opcode::kSetItems);
      case Kind::kOrderedDict:
        write_call("collections", "OrderedDict", {});
        remember();
        return write_batches(*value.find_entries(), Opcode::kSetItems);
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
      // The shortest form that keeps the sign.
      const char sign = value < 0 ? '\xFF' : '\0';
      while (bytes.back() == sign && ((bytes[bytes.size() - 2] ^ sign) & 0x80) == 0)
        bytes.pop_back();
      write_long(bytes);
    }
  }

  void write_long(const std::string& two_complement) {
    sized_op(Opcode::kLong1, Opcode::kLong4, two_complement.size());
    out_ += two_complement;
  }

  void write_text(const std::string& text) {
    if (text.size() > UINT32_MAX)
      throw DamagedFile("a string of more than 4 GiB cannot be written");
    const auto size = std::bit_cast<std::array<char, 4>>(static_cast<uint32_t>(text.size()));
    write_once('X' + std::string(size.data(), size.size()) + text);
  }

  // A nested class has a name with a dot. Protocol 2 reaches it only by getattr().
  void write_global(const std::string& module, const std::string& name) {
    if ((module + name).find('\n') != std::string::npos)
      throw DamagedFile("the class " + printable(module + "." + name) + " has a line break");
    const size_t dot = name.rfind('.');
    if (dot == std::string::npos || dot == 0 || dot + 1 == name.size() || name[dot - 1] == '.')
      return write_once('c' + module + '\n' + name + '\n');
    write_global("__builtin__", "getattr");
    write_global(module, name.substr(0, dot));
    write_text(name.substr(dot + 1));
    op(Opcode::kTuple2);
    op(Opcode::kReduce);
    if (recursive_) put(next_++);  // memoized like the object that it is read as
  }

  void write_tuple(const std::vector<Value>& items) {
    if (items.empty()) return op(Opcode::kEmptyTuple);
    if (items.size() > 3) op(Opcode::kMark);
    for (const Value& item : items) write(item);
    constexpr Opcode kShort[] = {Opcode::kTuple1, Opcode::kTuple2, Opcode::kTuple3};
    op(items.size() > 3 ? Opcode::kTuple : kShort[items.size() - 1]);
  }

  void write_call(const char* module, const char* name, const std::vector<Value>& args) {
    write_global(module, name);
    write_tuple(args);
    op(Opcode::kReduce);
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

  // ('storage', class, key, location, numel)
  void write_storage(const Value::Global& type, const TensorRecord& tensor, int64_t numel) {
    op(Opcode::kMark);
    write_text("storage");
    write_global(type.module, type.name);
    write_text(store_tensor_(tensor));
    write_text("cpu");
    write_int(numel);
    op(Opcode::kTuple);
    op(Opcode::kBinPersId);
  }

  // _rebuild_tensor_v2(storage, offset, sizes, strides, requires_grad, hooks). If there is no
  // storage class for the dtype, it is v3, with the dtype after the hooks.
  void write_tensor(const TensorRecord& tensor) {
    const std::string type(storage_class(tensor.dtype));
    write_global("torch._utils", type.empty() ? "_rebuild_tensor_v3" : "_rebuild_tensor_v2");
    op(Opcode::kMark);
    if (type.empty()) {
      write_storage(kUntypedStorage, tensor, static_cast<int64_t>(tensor.nbytes()));
    } else {
      write_storage({"torch", type}, tensor, tensor.numel());
    }
    write_int(0);
    const Shape strides = contiguous_strides(tensor.shape);
    write_tuple({tensor.shape.begin(), tensor.shape.end()});
    write_tuple({strides.begin(), strides.end()});
    op(tensor.requires_grad ? Opcode::kNewTrue : Opcode::kNewFalse);
    write_call("collections", "OrderedDict", {});
    if (type.empty()) write_global("torch", std::string(dtype_name(tensor.dtype)));
    op(Opcode::kTuple);
    op(Opcode::kReduce);
  }

  void write_object(const Value::Object& object) {
    const auto& args = object.args;
    if (*object.type == kItself) return write_itself(object);
    if (is_storage(object))
      return write_storage(*object.type, args[0].as_tensor(), args[1].as_int());
    if (*object.type == kCall) {
      write(args.at(0));
      write_tuple({args.begin() + 1, args.end()});
    } else {
      write_global(object.type->module, object.type->name);
      write_tuple(args);
    }
    op(object.call ? Opcode::kReduce : Opcode::kNewObj);
    remember();
    write_batches(object.items, Opcode::kAppends);
    write_batches(object.entries, Opcode::kSetItems);
    if (object.state) {
      write(*object.state);
      op(Opcode::kBuild);
    }
  }

  void write_itself(const Value::Object& object) {
    const size_t up = object.args.empty() ? 0 : static_cast<size_t>(object.args[0].as_int()),
                 inner = open_.size() - 1;  // without the stand-in
    if (up == 0 || up > inner || open_[inner - up] == kUnknown)
      throw DamagedFile("a value that contains itself in more than one way cannot be written");
    get(open_[inner - up]);
  }

  static bool is_storage(const Value::Object& object) {
    return !object.call && !object.state && object.type->name.ends_with(kStorageSuffix) &&
           object.args.size() == 2 && object.args[0].is_tensor() &&
           object.args[1].kind() == Value::Kind::kInt;
  }

  static bool holds_itself(const Value& value) {
    bool found = value.is_object() && *value.as_object().type == kItself;
    value.for_each_child([&](const Value& child) { found = found || holds_itself(child); });
    return found;
  }

  static constexpr size_t kUnknown = SIZE_MAX;
  const StoreTensor& store_tensor_;
  std::string out_;
  std::unordered_map<std::string, size_t> memo_;  // opcodes and their texts -> number
  size_t next_ = 0;                               // the next number in the memo
  bool recursive_ = false;
  std::vector<size_t> open_;  // the memo numbers of the values being written
};

std::string encode_pickle(const Value& value, const StoreTensor& store_tensor) {
  return PickleEncoder(store_tensor).run(value);
}

}  // namespace anymesh
