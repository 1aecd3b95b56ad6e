#include "framework/format/torch_file/value.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "framework/format/torch_file/elements.h"
#include "framework/util/errors.h"
#include "framework/util/format.h"
#include "framework/util/printable.h"

namespace anymesh {
namespace {

constexpr size_t kMostOfStep = 1000;  // bytes of one step of where()

std::string_view kind_name(Value::Kind kind) {
  constexpr std::array<std::string_view, 16> kNames = {
      "None",  "bool", "int",        "int",  "float",       "str",    "bytes", "list",
      "tuple", "set",  "torch.Size", "dict", "OrderedDict", "tensor", "name",  "object"};
  return kNames[static_cast<size_t>(kind)];
}

// Returns a one-element tensor as a number. It is mostly Adam's step.
std::optional<double> scalar(const TensorRecord& tensor) {
  if (tensor.numel() != 1 || is_complex(tensor.dtype)) return std::nullopt;
  std::vector<std::byte> bytes(element_size(tensor.dtype));
  tensor.bytes->read(0, bytes);
  double number = 0;
  to_doubles(tensor.dtype, bytes, std::span(&number, 1));
  return number;
}

bool is_unread_tensor(const Value::Object& object) { return object.type->module == "torch._utils"; }

// Describes an object, which may stand for something other than a class instance; see pickle.h.
std::string describe(const Value::Object& object) {
  if (object.type->module.empty()) return object.type->name;
  return (is_unread_tensor(object) ? "tensor that is not read, of " : "object of class ") +
         Value(*object.type).found();
}

auto has_key(std::string_view key) {
  return [key](const Value::Entry& entry) {
    return entry.first.is_string() && entry.first.as_string() == key;
  };
}

bool same_bytes(const BytesPtr& a, const BytesPtr& b) {
  const uint64_t size = a ? a->size() : 0;
  if (a == b || size != (b ? b->size() : 0)) return a == b;
  constexpr uint64_t kChunk = 1 << 20;
  std::vector<std::byte> left(std::min(size, kChunk)), right(left.size());
  for (uint64_t offset = 0; offset < size; offset += kChunk) {
    const uint64_t n = std::min(kChunk, size - offset);
    a->read(offset, std::span(left).first(n));
    b->read(offset, std::span(right).first(n));
    if (std::memcmp(left.data(), right.data(), n) != 0) return false;
  }
  return true;
}

// Returns " with the value 4" for a tensor of one number, as a step is, else "".
std::string only_number(const TensorRecord& tensor) {
  try {
    const auto number = tensor.shape.empty() ? scalar(tensor) : std::nullopt;
    return number ? string_printf(" with the value %.9g", *number) : "";
  } catch (const std::exception&) {  // the message is about something else
    return "";
  }
}

}  // namespace

// How a value was reached: a file name, then one link for each key.
struct Value::Where {
  std::shared_ptr<const Where> parent;
  std::string step;
};

Value::Kind Value::kind() const {
  if (const auto* data = std::get_if<std::shared_ptr<const Raw>>(&data_)) return (*data)->kind;
  if (const auto* sequence = std::get_if<std::shared_ptr<Sequence>>(&data_))
    return (*sequence)->kind;
  if (const auto* mapping = std::get_if<std::shared_ptr<Mapping>>(&data_)) return (*mapping)->kind;
  constexpr std::array kKinds = {Kind::kNone,   Kind::kBool,   Kind::kInt,
                                 Kind::kFloat,  Kind::kString, Kind::kBytes,
                                 Kind::kGlobal, Kind::kTensor, Kind::kObject};
  return kKinds[data_.index()];
}

template <typename T>
const T& Value::get(const char* expected) const {
  const auto* v = std::get_if<T>(&data_);
  if (!v) fail(expected);
  return *v;
}

bool Value::is_sequence() const { return std::holds_alternative<std::shared_ptr<Sequence>>(data_); }
bool Value::is_dict() const { return std::holds_alternative<std::shared_ptr<Mapping>>(data_); }

bool Value::is_object(std::string_view class_name) const {
  return is_object() && as_object().type->name == class_name;
}

bool Value::as_bool() const { return get<bool>("a bool"); }

int64_t Value::as_int() const {
  if (const auto* v = std::get_if<int64_t>(&data_)) return *v;
  if (const auto* v = std::get_if<bool>(&data_)) return *v;
  if (is_object() && as_object().call && as_object().args.size() == 1) {
    if (const auto* v = std::get_if<int64_t>(&as_object().args[0].data_)) return *v;
  }
  if (is_tensor() || kind() == Kind::kFloat) {
    const double v = as_double();
    if (v == std::trunc(v) && std::abs(v) < 0x1p62) return static_cast<int64_t>(v);
  }
  fail("an integer");
}

double Value::as_double() const {
  if (const auto* v = std::get_if<double>(&data_)) return *v;
  if (const auto* v = std::get_if<int64_t>(&data_)) return static_cast<double>(*v);
  if (is_tensor()) {
    if (const auto v = scalar(as_tensor())) return *v;
  }
  fail("a number");
}

const std::string& Value::as_string() const& {
  return *get<std::shared_ptr<const std::string>>("a string");
}

const std::string& Value::as_bytes() const& {
  if (kind() != Kind::kBytes && kind() != Kind::kBigInt) fail("bytes");
  return raw();
}

const TensorRecord& Value::as_tensor() const& {
  if (is_object() && is_unread_tensor(as_object())) refuse("a tensor");
  return *get<std::shared_ptr<const TensorRecord>>("a tensor");
}

const Value::Global& Value::as_global() const& {
  return *get<std::shared_ptr<const Global>>("the name of a class");
}

const Value::Object& Value::as_object() const& {
  return *get<std::shared_ptr<Object>>("an object");
}

std::vector<int64_t> Value::as_ints() const {
  std::vector<int64_t> ints;
  for (const Value& item : items()) ints.push_back(item.as_int());
  return ints;
}

Shape Value::as_shape() const {
  const Shape shape = as_ints();
  try {
    numel(shape);
  } catch (const DamagedFile& error) {
    throw DamagedFile(where() + ": " + error.what());
  }
  return shape;
}

std::vector<std::string> Value::as_strings() const {
  std::vector<std::string> strings;
  for (const Value& item : items()) strings.push_back(item.as_string());
  return strings;
}

const Value::Mapping* Value::find_mapping() const {
  if (const auto* mapping = std::get_if<std::shared_ptr<Mapping>>(&data_)) return mapping->get();
  if (const auto* object = std::get_if<std::shared_ptr<Object>>(&data_))
    return (*object)->state ? (*object)->state->find_mapping() : nullptr;
  return nullptr;
}

const std::vector<Value::Entry>* Value::find_entries() const {
  const Mapping* mapping = find_mapping();
  return mapping ? &mapping->entries : nullptr;
}

const std::vector<Value>* Value::find_items() const {
  const auto* sequence = std::get_if<std::shared_ptr<Sequence>>(&data_);
  return sequence ? &(*sequence)->items : nullptr;
}

Value Value::child(const Value& value, std::string key) const {
  if (key.size() > kMostOfStep) key = printable(key);
  Value result = value;
  result.where_ = std::make_shared<const Where>(Where{where_, "[" + std::move(key) + "]"});
  return result;
}

const Value* Value::find_value(std::string_view key) const {
  const Mapping* mapping = find_mapping();
  if (!mapping) fail("a dict");
  return mapping->find(key);
}

const Value* Value::Mapping::find(std::string_view key) const {
  constexpr size_t kFew = 32;
  if (entries.size() <= kFew) {
    const auto found = std::ranges::find_if(entries, has_key(key));
    return found == entries.end() ? nullptr : &found->second;
  }
  std::call_once(indexed, [this] {
    index = std::make_unique<std::unordered_map<std::string_view, size_t>>(entries.size());
    for (size_t i = 0; i < entries.size(); ++i)
      if (entries[i].first.is_string()) index->emplace(entries[i].first.as_string(), i);
  });
  const auto found = index->find(key);
  return found == index->end() ? nullptr : &entries[found->second].second;
}

// Keys that count from 0 are usually at their own index, so that is tried first.
Value Value::find(int64_t key) const {
  const auto* entries = find_entries();
  if (!entries) fail("a dict");
  const auto is_key = [key](const Entry& entry) {
    return entry.first.is_int() && entry.first.as_int() == key;
  };
  auto found = entries->begin() + std::clamp<int64_t>(key, 0, std::ssize(*entries));
  if (found == entries->end() || !is_key(*found)) found = std::ranges::find_if(*entries, is_key);
  return child(found == entries->end() ? Value() : found->second, std::to_string(key));
}

Value Value::find(std::string_view key) const {
  const Value* found = find_value(key);
  return child(found ? *found : Value(), "'" + std::string(key) + "'");
}

bool Value::contains(std::string_view key) const { return find_value(key) != nullptr; }

Value Value::at(std::string_view key) const {
  if (const Value* found = find_value(key)) return child(*found, "'" + std::string(key) + "'");
  std::string names;
  for (const auto& [name, value] : *find_entries()) {
    if (names.size() < 400) names += (names.empty() ? "" : ", ") + name.found();
  }
  throw DamagedFile(where() + ": has no key '" + printable(key) + "', only " +
                    (names.empty() ? "none" : names));
}

std::vector<Value::Entry> Value::entries() const {
  const auto* found = find_entries();
  if (!found) fail("a dict");
  std::vector<Entry> result;
  result.reserve(found->size());
  for (const auto& [key, value] : *found) result.emplace_back(key, child(value, key.found()));
  return result;
}

Value Value::at(size_t index) const {
  const auto* found = find_items();
  if (!found) fail("a list");
  if (index >= found->size()) {
    throw DamagedFile(where() + ": has " + std::to_string(found->size()) +
                      " items, expected at least " + std::to_string(index + 1));
  }
  return child((*found)[index], std::to_string(index));
}

std::vector<Value> Value::items() const {
  const auto* found = find_items();
  if (!found) fail("a list");
  std::vector<Value> result;
  result.reserve(found->size());
  for (size_t i = 0; i < found->size(); ++i)
    result.push_back(child((*found)[i], std::to_string(i)));
  return result;
}

size_t Value::size() const {
  if (const auto* found = find_items()) return found->size();
  if (const auto* found = find_entries()) return found->size();
  fail("a list or a dict");
}

std::vector<Value::Entry>& Value::own_entries() {
  if (auto* mapping = std::get_if<std::shared_ptr<Mapping>>(&data_)) {
    if (mapping->use_count() > 1 || (*mapping)->index) unshare();
    return (*mapping)->entries;
  }
  auto* object = std::get_if<std::shared_ptr<Object>>(&data_);
  if (!object || !(*object)->state) fail("a dict");
  unshare();
  return (*object)->state->own_entries();
}

Value& Value::set(std::string_view key, Value value) {
  std::vector<Entry>& entries = own_entries();
  const auto old = std::ranges::find_if(entries, has_key(key));
  if (old == entries.end()) {
    entries.emplace_back(key, std::move(value));
  } else {
    old->second = std::move(value);
  }
  return *this;
}

Value& Value::erase(std::string_view key) {
  std::erase_if(own_entries(), has_key(key));
  return *this;
}

Value& Value::push_back(Value value) {
  if (!is_list()) fail("a list");
  auto& sequence = std::get<std::shared_ptr<Sequence>>(data_);
  if (sequence.use_count() > 1) unshare();
  sequence->items.push_back(std::move(value));
  return *this;
}

Value Value::named(std::string file) const {
  Value result = *this;
  result.where_ = std::make_shared<const Where>(Where{nullptr, std::move(file) + ": "});
  return result;
}

std::string Value::where() const {
  std::string text;
  for (const Where* place = where_.get(); place; place = place->parent.get())
    text = printable(place->step, kMostOfStep) + text;
  if (text.ends_with(": ")) text.resize(text.size() - 2);
  return text.empty() ? "value" : text;
}

std::string Value::found() const {
  switch (kind()) {
    case Kind::kNone:
      return "None";
    case Kind::kBool:
      return as_bool() ? "True" : "False";
    case Kind::kInt:
      return std::to_string(as_int());
    case Kind::kFloat:
      return std::to_string(as_double());
    case Kind::kString:
      return "'" + printable(as_string(), 100) + "'";
    case Kind::kTensor:
      return std::string(dtype_name(as_tensor().dtype)) + " tensor of shape " +
             to_string(as_tensor().shape) + only_number(as_tensor());
    case Kind::kGlobal:
      return printable(as_global().module) + "." + printable(as_global().name);
    case Kind::kObject:
      return describe(as_object());
    case Kind::kBytes:
    case Kind::kBigInt:
      return std::string(kind_name(kind())) + " of " + std::to_string(raw().size()) + " bytes";
    default:
      return std::string(kind_name(kind())) + " of " + std::to_string(size());
  }
}

void Value::refuse(const std::string& expected) const {
  throw Unreadable(where() + ": expected " + expected + ", found " + found());
}

void Value::fail(const std::string& expected) const {
  throw DamagedFile(where() + ": expected " + expected + ", found " + found());
}

bool Value::operator==(const Value& other) const {
  if (kind() != other.kind()) return false;
  switch (kind()) {
    case Kind::kString:
      return as_string() == other.as_string();
    case Kind::kGlobal:
      return as_global() == other.as_global();
    case Kind::kBytes:
    case Kind::kBigInt:
      return raw() == other.raw();
    case Kind::kTensor: {
      const TensorRecord &a = as_tensor(), &b = other.as_tensor();
      return a.dtype == b.dtype && a.shape == b.shape && a.requires_grad == b.requires_grad &&
             same_bytes(a.bytes, b.bytes);
    }
    case Kind::kObject: {
      const Object &a = as_object(), &b = other.as_object();
      const bool same_state = a.state && b.state ? *a.state == *b.state : a.state == b.state;
      return *a.type == *b.type && a.call == b.call && same_state && a.args == b.args &&
             a.items == b.items && a.entries == b.entries;
    }
    default:
      if (const auto* items = find_items()) return *items == *other.find_items();
      if (const auto* entries = find_entries()) return *entries == *other.find_entries();
      return data_ == other.data_;
  }
}

}  // namespace anymesh
