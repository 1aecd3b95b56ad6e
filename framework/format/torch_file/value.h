#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "framework/format/io/byte_source.h"
#include "framework/format/torch_file/dtype.h"

namespace anymesh {

// A tensor in a file: row-major and contiguous. `bytes` holds exactly numel elements. Records with
// the same `bytes` pointer are the same memory to torch (tied weights).
struct TensorRecord {
  DType dtype = DType::kFloat32;
  Shape shape;
  bool requires_grad = false;
  BytesPtr bytes;

  int64_t numel() const { return anymesh::numel(shape); }
  uint64_t nbytes() const { return static_cast<uint64_t>(numel()) * element_size(dtype); }
  // Returns elements [begin, ...) as a tensor of another shape, which is read from here.
  TensorRecord slice(int64_t begin, Shape shape) const;
};

using NamedTensors = std::vector<std::pair<std::string, TensorRecord>>;

// The Python objects of a checkpoint file, as plain data. No code in a file is ever executed.
//
//   Value v = Value::dict({{"step", 4}, {"lr", 0.1}, {"betas", Value::tuple({0.9, 0.95})}});
//   v.set("name", "adam");
//   v.at("betas").at(1).as_double();            // 0.95
//   if (Value lr = v.find("lr")) ...            // None (false) when absent
//
// Reading a value as the wrong type throws a DamagedFile that says where it came from, e.g.
//   mp_rank_00_model_states.pt: ['param_shapes'][0]: expected a dict, found int 7
// Values are small and cheap to copy. Anything larger than a number is shared, and containers are
// copied on write. A class that is not one of the kinds below (Namespace, loss scalers, enums,
// NumPy arrays, ...) is kept as an object: its name, arguments and state. pickle.h lists the
// objects that stand for unsupported kinds of tensors and for values that contain themselves.
class Value {
 public:
  using Entry = std::pair<Value, Value>;

  enum class Kind {
    kNone,
    kBool,
    kInt,
    kBigInt,
    kFloat,
    kString,
    kBytes,
    kList,
    kTuple,
    kSet,
    kSize,
    kDict,
    kOrderedDict,
    kTensor,
    kGlobal,
    kObject
  };

  // A class or function by name, e.g. torch.float32.
  struct Global {
    std::string module, name;
    bool operator==(const Global&) const = default;
  };

  // An instance of any other class, as Python's pickle describes it.
  struct Object {
    std::shared_ptr<const Global> type;
    bool call = false;  // made by type(*args) rather than by type.__new__(type, *args)
    std::vector<Value> args;
    std::shared_ptr<Value> state;  // given to __setstate__ or __dict__; null if none
    std::vector<Value> items;      // appended, for list-like classes
    std::vector<Entry> entries;    // set by key, for dict-like classes
  };

  Value() = default;
  Value(std::nullptr_t) {}
  Value(bool v) : data_(v) {}
  Value(int v) : data_(static_cast<int64_t>(v)) {}
  Value(int64_t v) : data_(v) {}
  Value(double v) : data_(v) {}
  Value(const char* v) : Value(std::string(v)) {}
  Value(std::string_view v) : Value(std::string(v)) {}
  Value(std::string v) : data_(std::make_shared<const std::string>(std::move(v))) {}
  Value(TensorRecord v) : data_(std::make_shared<const TensorRecord>(std::move(v))) {}
  Value(Global v) : data_(std::make_shared<const Global>(std::move(v))) {}
  Value(Object v) : data_(std::make_shared<Object>(std::move(v))) {}
  Value(const void*) = delete;

  static Value list(std::vector<Value> items = {});
  static Value tuple(std::vector<Value> items = {});
  static Value set(std::vector<Value> items);
  static Value dict(std::vector<Entry> entries = {});
  static Value ordered_dict(std::vector<Entry> entries = {});
  static Value size(std::span<const int64_t> shape);  // torch.Size
  static Value dtype(DType dtype);                    // torch.float32
  static Value bytes(std::string data);
  static Value big_int(std::string two_complement);  // little-endian, beyond 64 bits
  template <typename T>
  static Value list_of(const std::vector<T>& items) {
    return list({items.begin(), items.end()});
  }
  // Makes an object without arguments and gives it attributes:
  // ("argparse", "Namespace", {{"lr", 0.1}}).
  static Value object(std::string module, std::string name, std::vector<Entry> attributes);

  Kind kind() const;
  bool is_none() const { return kind() == Kind::kNone; }
  bool is_int() const { return kind() == Kind::kInt; }
  bool is_number() const { return is_int() || kind() == Kind::kFloat; }
  bool is_string() const {
    return std::holds_alternative<std::shared_ptr<const std::string>>(data_);
  }
  bool is_list() const { return kind() == Kind::kList; }
  bool is_tensor() const { return kind() == Kind::kTensor; }
  bool is_object() const { return kind() == Kind::kObject; }
  bool is_sequence() const;                           // list, tuple, set or torch.Size
  bool is_dict() const;                               // dict or OrderedDict
  bool is_object(std::string_view class_name) const;  // by class name, in any module
  explicit operator bool() const { return !is_none(); }
  Value value_or(const Value& other) const { return is_none() ? other : *this; }

  bool as_bool() const;
  int64_t as_int() const;    // int, bool, whole float, one-element tensor or int enum
  double as_double() const;  // int, float or one-element tensor
  const std::string& as_string() const&;
  const std::string& as_bytes() const&;  // or a kBigInt's two's complement
  const TensorRecord& as_tensor() const&;
  const Global& as_global() const&;
  const Object& as_object() const&;
  // On a temporary, such as at() and find() return, these return a copy that may be kept.
  std::string as_string() && { return std::as_const(*this).as_string(); }
  std::string as_bytes() && { return std::as_const(*this).as_bytes(); }
  TensorRecord as_tensor() && { return std::as_const(*this).as_tensor(); }
  Global as_global() && { return std::as_const(*this).as_global(); }
  Object as_object() && { return std::as_const(*this).as_object(); }
  Shape as_shape() const;  // a sequence of ints, e.g. torch.Size
  std::vector<int64_t> as_ints() const;
  std::vector<std::string> as_strings() const;

  // The entries of a dict, or the attributes of an object (its state). For an absent key, at()
  // throws and find() returns None.
  Value at(std::string_view key) const;
  Value find(std::string_view key) const;
  Value find(int64_t key) const;
  bool contains(std::string_view key) const;
  std::vector<Entry> entries() const;  // each knows its place, for messages
  // The items of a sequence.
  Value at(size_t index) const;
  Value at(int index) const { return at(static_cast<size_t>(index)); }
  std::vector<Value> items() const;
  size_t size() const;  // for a sequence, dict or object

  // Change a dict or an object's attributes. set() keeps the position of an existing key.
  Value& set(std::string_view key, Value value);
  Value& erase(std::string_view key);
  Value& push_back(Value value);  // for a list

  // For messages: where the value came from (a file, then keys), and a short description of it.
  Value named(std::string file) const;
  std::string where() const;
  std::string found() const;
  [[noreturn]] void fail(const std::string& expected) const;    // throws DamagedFile: a bad file
  [[noreturn]] void refuse(const std::string& expected) const;  // throws Unreadable: unsupported

  bool operator==(const Value& other) const;  // by content, tensor bytes included

 private:
  friend class PickleEncoder;
  friend class PickleDecoder;
  friend Value map_tensors(const Value&, const std::function<TensorRecord(const TensorRecord&)>&);

  struct Sequence {
    Kind kind;
    std::vector<Value> items;
  };
  struct Mapping {
    Mapping(Kind k, std::vector<Entry> e) : kind(k), entries(std::move(e)) {}
    Mapping(const Mapping& other) : Mapping(other.kind, other.entries) {}
    const Value* find(std::string_view key) const;
    Kind kind;
    std::vector<Entry> entries;
    // Built by the first lookup among many entries; own_entries() drops it.
    mutable std::once_flag indexed;
    mutable std::unique_ptr<std::unordered_map<std::string_view, size_t>> index;
  };
  struct Raw {  // bytes and integers beyond 64 bits
    Kind kind;
    std::string data;
  };
  struct Where;

  Value(Kind kind, std::vector<Value> items);
  Value(Kind kind, std::vector<Entry> entries);
  Value(Kind kind, std::string data);
  template <typename T>
  const T& get(const char* expected) const;  // throws unless the value holds a T
  const std::string& raw() const { return std::get<std::shared_ptr<const Raw>>(data_)->data; }
  const Value* find_value(std::string_view key) const;
  const Mapping* find_mapping() const;  // dict or object's attributes, else null
  const std::vector<Entry>* find_entries() const;
  const std::vector<Value>* find_items() const;
  // Calls fn for each value that a container holds. It may change them: unshare() first.
  template <class Fn>
  void for_each_child(const Fn& fn) const;
  void unshare();                     // a container's own level
  std::vector<Entry>& own_entries();  // unshared first, to be changed
  Value child(const Value& value, std::string key) const;

  // kind() relies on this order.
  std::variant<std::monostate, bool, int64_t, double, std::shared_ptr<const std::string>,
               std::shared_ptr<const Raw>, std::shared_ptr<const Global>,
               std::shared_ptr<const TensorRecord>, std::shared_ptr<Object>,
               std::shared_ptr<Sequence>, std::shared_ptr<Mapping>>
      data_;
  std::shared_ptr<const Where> where_;
};

template <class Fn>
void Value::for_each_child(const Fn& fn) const {
  const auto each = [&fn](std::vector<Value>& items) {
    for (Value& item : items) fn(item);
  };
  const auto each_entry = [&fn](std::vector<Entry>& entries) {
    for (auto& [key, item] : entries) {
      fn(key);
      fn(item);
    }
  };
  if (const auto* sequence = std::get_if<std::shared_ptr<Sequence>>(&data_))
    each((*sequence)->items);
  if (const auto* mapping = std::get_if<std::shared_ptr<Mapping>>(&data_))
    each_entry((*mapping)->entries);
  const auto* object = std::get_if<std::shared_ptr<Object>>(&data_);
  if (!object) return;
  each((*object)->args);
  each((*object)->items);
  each_entry((*object)->entries);
  if ((*object)->state) fn(*(*object)->state);
}

// Returns the value with each tensor in it replaced by change(tensor).
Value map_tensors(const Value& value,
                  const std::function<TensorRecord(const TensorRecord&)>& change);

// Classes of DeepSpeed and Megatron that checkpoints hold by name.
Value fragment_address(int64_t numel, int64_t start);
Value zero_stage_enum(int stage);
// Returns the stage that an int or a ZeroStageEnum names. Debian 12's Python 3.11.2 pickles the
// enum by name: getattr(ZeroStageEnum, "weights").
int zero_stage_of(const Value& stage);
Value loss_scaler(double scale);
Value dynamic_loss_scaler(std::vector<Value::Entry> fields);
Value argparse_namespace(std::vector<Value::Entry> attributes);

// Returns a flag's value (Setting::value of config/flags.h) as an argparse namespace holds it, or
// None if it is not set.
template <class... Types>
Value value_of(const std::variant<Types...>& setting) {
  struct Visitor {
    Value operator()(std::monostate) const { return {}; }
    Value operator()(const std::vector<std::string>& v) const { return Value::list_of(v); }
    Value operator()(const std::vector<int64_t>& v) const { return Value::list_of(v); }
    Value operator()(bool v) const { return v; }
    Value operator()(int64_t v) const { return v; }
    Value operator()(double v) const { return v; }
    Value operator()(const std::string& v) const { return v; }
  };
  return std::visit(Visitor{}, setting);
}

}  // namespace anymesh
