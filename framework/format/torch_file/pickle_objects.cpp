// Classes in a pickle: calls by name, which include tensors and are never executed.

#include "framework/format/torch_file/pickle_decoder.h"
#include "framework/util/errors.h"
#include "framework/util/utf8.h"

namespace anymesh {
namespace {

constexpr size_t kMaxDims = 64;       // torch's own limit
constexpr uint64_t kOpenBytes = 224;  // per opened storage
constexpr uint64_t kMostExpanded = 1 << 30;

std::string latin1_from_utf8(std::string_view text) {
  std::string bytes;
  bytes.reserve(text.size());
  while (!text.empty()) {
    const CodePoint c = decode_utf8(text);
    if (!c.valid || c.value > 0xFF)
      throw DamagedFile("text that should encode bytes holds a character beyond 255");
    bytes += static_cast<char>(c.value);
    text.remove_prefix(c.bytes);
  }
  return bytes;
}

// Returns the last element's position. It fits in 128 bits because the product of the sizes fits in
// 63.
__int128 last_place(int64_t offset, const Shape& shape, const Shape& strides) {
  __int128 place = offset;
  for (size_t dim = 0; dim < shape.size(); ++dim)
    place += static_cast<__int128>(shape[dim] - 1) * strides[dim];
  return place;
}

// Strides of dimensions of size 1 do not matter.
bool is_contiguous(const Shape& shape, const Shape& strides) {
  const Shape expected = contiguous_strides(shape);
  for (size_t dim = 0; dim < shape.size(); ++dim) {
    if (shape[dim] != 1 && strides[dim] != expected[dim]) return false;
  }
  return true;
}

}  // namespace

bool PickleDecoder::is_storage(const Value& value) const {
  return value.is_object() && value.as_object().type.get() == &storage_type_.as_global();
}

// Returns the object of a value, to be changed. A storage has none.
Value::Object& PickleDecoder::object_of(const Value& value, const char* expected) const {
  if (!value.is_object() || is_storage(value)) value.fail(expected);
  return *std::get<std::shared_ptr<Value::Object>>(value.data_);
}

Value PickleDecoder::object(const Value& type, bool call, std::vector<Value> args) const {
  const bool by_name = !type.is_object() || is_storage(type);
  if (by_name) type.as_global();
  if (!by_name) args.insert(args.begin(), type);
  Value::Object object;
  object.type = std::get<std::shared_ptr<const Value::Global>>((by_name ? type : call_type_).data_);
  object.call = call;
  object.args = std::move(args);
  return object;
}

void PickleDecoder::push_stack_global() {
  const std::vector<Value> names = pop_last(2);
  push(global(names[0].as_string(), names[1].as_string()));
}

void PickleDecoder::push_call(const char* module, const char* name, std::vector<Value> args) {
  push_new(object(global(module, name), true, std::move(args)));
}

void PickleDecoder::push_frozen_set() {
  push_new(Value::list(pop_to_mark()));
  push_call("__builtin__", "frozenset", pop_last(1));
}

Value PickleDecoder::global(std::string_view module, std::string_view name) {
  if (module.empty() || name.empty()) throw DamagedFile("names a class without module or name");
  hold(kShared<Value::Global> + text_bytes(module.size()) + text_bytes(name.size()));
  return Value::Global{std::string(module), std::string(name)};
}

const std::vector<Value>& PickleDecoder::arguments(const Value& tuple) {
  if (tuple.kind() != Value::Kind::kTuple) tuple.fail("a tuple of arguments");
  return copyable(tuple);
}

// Returns a sequence's items if there is memory for a copy of them.
const std::vector<Value>& PickleDecoder::copyable(const Value& sequence) {
  const auto& items = *sequence.find_items();
  const uint64_t bytes = block(items.size() * sizeof(Value));
  hold(bytes);
  held_ -= bytes;
  return items;
}

// Pops a type and its arguments. Returns the value of type(*args) or, if not `call`, of
// type.__new__(type, *args).
Value PickleDecoder::pop_call(bool call) {
  Value made;
  {
    const Value args = pop(), type = pop();
    made = call ? reduce(type, arguments(args)) : object(type, false, arguments(args));
  }
  collect();
  return made;
}

Value PickleDecoder::reduce(const Value& type, const std::vector<Value>& args) {
  if (type.is_object()) return object(type, true, args);
  const Value::Global& function = type.as_global();
  const auto is = [&](std::string_view module, std::string_view name) {
    return function.module == module && function.name == name;
  };
  const bool builtin = function.module == "__builtin__" || function.module == "builtins";
  const bool with_dtype = is("torch._utils", "_rebuild_tensor_v3");
  if (with_dtype || is("torch._utils", "_rebuild_tensor_v2")) {
    if (const auto made = tensor(args, with_dtype)) return *made;
  }
  const bool with_state = is("torch._utils", "_rebuild_parameter_with_state");
  if ((with_state || is("torch._utils", "_rebuild_parameter")) && args.size() >= 2 &&
      args[0].is_tensor()) {
    TensorRecord parameter = args[0].as_tensor();
    hold(kShared<TensorRecord> + block(parameter.shape.size() * sizeof(int64_t)));
    parameter.requires_grad = args[1].as_bool();
    return parameter;
  }
  if (is("torch._tensor", "_rebuild_from_type_v2") && args.size() >= 3) {
    // A tensor with Python attributes: (rebuild, class, its arguments, attributes).
    if (args[0] == type) args[0].fail("the function that rebuilds a tensor");
    const Value rebuilt = reduce(args[0], arguments(args[2]));
    if (rebuilt.is_tensor()) return rebuilt;
  }
  if (is("collections", "OrderedDict") && args.empty()) return Value::ordered_dict();
  if (is("torch", "Size") && args.size() == 1 && args[0].is_sequence()) {
    if (args[0].size() > kMaxDims) args[0].fail("at most 64 dimensions");
    hold(kShared<Value::Sequence> + block(args[0].size() * sizeof(Value)));
    return Value::size(args[0].as_ints());
  }
  if (builtin && function.name == "set" && args.size() == 1 && args[0].is_sequence())
    return Value::set(copyable(args[0]));
  if (is("_codecs", "encode") && args.size() == 2 && args[1] == Value("latin1"))
    return bytes(latin1_from_utf8(args[0].as_string()));
  if (builtin && function.name == "bytes" && args.empty()) return Value::bytes("");
  return object(type, true, args);
}

// Sets attributes. Those of a tensor or an OrderedDict (the _metadata of a state_dict) are dropped,
// because nothing needs them.
void PickleDecoder::build() {
  Value state = pop();
  Value& target = top();
  if (target.kind() == Value::Kind::kOrderedDict || target.is_tensor()) return;
  Value::Object& object = object_of(target, "an object to set the state of");
  if (object.state) throw DamagedFile("sets the state of an object twice");
  hold(kShared<Value>);
  object.state = std::make_shared<Value>(std::move(state));
}

// ('storage', torch.FloatStorage, key, location, numel)
Value PickleDecoder::storage(const Value& id) {
  const bool is_tuple = id.kind() == Value::Kind::kTuple && id.size() == 5;
  if (!is_tuple || (*id.find_items())[0] != Value("storage")) {
    id.fail("a persistent id of a torch storage");
  }
  const std::vector<Value>& fields = *id.find_items();
  const Value::Global& type = fields[1].as_global();
  if (!type.name.ends_with(kStorageSuffix)) fields[1].fail("the class of a torch storage");
  const auto dtype = type.module == "torch"    ? dtype_of_storage_class(type.name)
                     : type == kUntypedStorage ? std::optional(DType::kUInt8)
                                               : std::nullopt;
  const std::string& key = fields[2].as_string();
  const int64_t numel = fields[4].as_int();
  const auto [known, is_new] = storages_.try_emplace(key);
  Storage& storage = known->second;
  if (is_new) {
    hold(kShared<decltype(storages_)::value_type> + kBucket + text_bytes(key.size()) + kOpenBytes);
    if (numel < 0) {
      throw DamagedFile("storage " + key + " has " + std::to_string(numel) + " elements");
    }
    storage = {std::get<std::shared_ptr<const Value::Global>>(fields[1].data_), dtype, numel,
               open_storage_(key, dtype.value_or(DType::kUInt8), dtype ? numel : -1)};
  }
  if (*storage.type != type || storage.numel != numel) {
    throw DamagedFile("describes storage " + key + " in two ways");
  }
  return object(storage_type_, false, {fields[2]});
}

// Turns a storage outside a tensor into the object that pickle.h describes.
void PickleDecoder::expose_storage(const Value& value) {
  Value::Object& object = *std::get<std::shared_ptr<Value::Object>>(value.data_);
  const Storage& storage = storages_.at(object.args[0].as_string());
  const DType dtype = storage.dtype.value_or(DType::kUInt8);
  const auto count = static_cast<int64_t>(storage.bytes->size() / element_size(dtype));
  hold(kShared<TensorRecord> + block(sizeof count) + block(2 * sizeof(Value)));
  object.type = storage.type;
  object.args = {TensorRecord{dtype, {count}, false, storage.bytes}, storage.numel};
}

// Makes a tensor from (storage, offset, sizes, strides, requires_grad, hooks[, metadata]). The
// dtype comes after the hooks if no storage class gives it. Returns nullopt if the call stays a
// call.
std::optional<TensorRecord> PickleDecoder::tensor(const std::vector<Value>& args, bool with_dtype) {
  if (args.size() < 6 + size_t{with_dtype} || !is_storage(args[0]))
    throw DamagedFile("makes a tensor without a storage");
  const std::string& key = args[0].as_object().args[0].as_string();
  const Storage& storage = storages_.at(key);
  const auto dtype = with_dtype ? dtype_of_name(args[6].as_global().name) : storage.dtype;
  if (!dtype) return std::nullopt;
  const int64_t offset = args[1].as_int();
  if (args[2].size() > kMaxDims) args[2].fail("at most 64 dimensions");
  if (args[3].size() > kMaxDims) args[3].fail("at most 64 strides");
  hold(kShared<TensorRecord> + block(args[2].size() * sizeof(int64_t)));
  TensorRecord tensor{*dtype, args[2].as_shape(), args[4].as_bool(), nullptr};
  const Shape strides = args[3].as_ints();
  const int64_t numel = tensor.numel();
  const auto held = static_cast<int64_t>(storage.bytes->size() / element_size(*dtype));
  const bool strided = strides.size() == tensor.shape.size(),
             contiguous = strided && (numel == 0 || is_contiguous(tensor.shape, strides)),
             outside = offset < 0 || offset > held || (contiguous && numel > held - offset),
             swollen = strided && !contiguous && expands_too_much(storage, *dtype, numel);
  if (!strided || outside || (swollen && last_place(offset, tensor.shape, strides) >= held)) {
    throw DamagedFile("storage " + key + " of " + std::to_string(held) +
                      " elements does not hold a tensor of shape " + to_string(tensor.shape) +
                      " and strides " + to_string(strides) + " at " + std::to_string(offset));
  }
  if (contiguous) {
    tensor.bytes = view(storage, *dtype, offset, numel);
    return tensor;
  }
  if (swollen) return std::nullopt;
  hold(kShared<StridedView> + 2 * block(strides.size() * sizeof(int64_t)));
  tensor.bytes = std::make_shared<StridedView>(
      storage.bytes, element_size(*dtype), static_cast<uint64_t>(offset), tensor.shape, strides);
  return tensor;
}

BytesPtr PickleDecoder::view(const Storage& storage, DType dtype, int64_t offset, int64_t numel) {
  const uint64_t size = element_size(dtype), begin = static_cast<uint64_t>(offset) * size,
                 bytes = static_cast<uint64_t>(numel) * size;
  if (bytes == storage.bytes->size()) return storage.bytes;
  BytesPtr& known = views_[{storage.bytes.get(), begin, bytes}];
  if (!known) {
    hold(kShared<SubRange> + block(32 + sizeof(*views_.begin())));
    known = std::make_shared<SubRange>(storage.bytes, begin, bytes);
  }
  return known;
}

// All such views count together, because each is written out in full when it is copied.
bool PickleDecoder::expands_too_much(const Storage& storage, DType dtype, int64_t numel) {
  const uint64_t size = element_size(dtype);
  if (static_cast<uint64_t>(numel) <= storage.bytes->size() / size) return false;
  if (static_cast<uint64_t>(numel) > (kMostExpanded - expanded_) / size) return true;
  expanded_ += static_cast<uint64_t>(numel) * size;
  return false;
}

}  // namespace anymesh
