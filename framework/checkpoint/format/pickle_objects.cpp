// What a pickle says about classes: calls by name, tensors among them, which are never made.

#include "framework/checkpoint/format/pickle_decoder.h"

namespace anymesh {
namespace {

constexpr size_t kMaxDims = 64;  // torch's own limit

std::string latin1_from_utf8(const std::string& text) {
  std::string bytes;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c < 0x80) {
      bytes += text[i];
    } else if ((c == 0xC2 || c == 0xC3) && i + 1 < text.size()) {
      bytes += static_cast<char>((c & 3) << 6 | (static_cast<unsigned char>(text[++i]) & 0x3F));
    } else {
      throw ValueError("text that should encode bytes holds a character beyond 255");
    }
  }
  return bytes;
}

// Strides of dims of size 1 do not matter.
bool is_contiguous(const Shape& shape, const Shape& strides) {
  const Shape expected = contiguous_strides(shape);
  for (size_t dim = 0; dim < shape.size(); ++dim) {
    if (shape[dim] != 1 && strides[dim] != expected[dim]) return false;
  }
  return true;
}

}  // namespace

const Value::Global PickleDecoder::kStorageType = {"", "storage"};

bool PickleDecoder::is_storage(const Value& value) {
  return value.is_object() && value.as_object().type == kStorageType;
}

bool PickleDecoder::step_object(Opcode opcode) {
  switch (opcode) {
    case Opcode::kGlobal: {
      std::string module = take_line();
      push_global(std::move(module), take_line());
      return true;
    }
    case Opcode::kStackGlobal: {
      const std::vector<Value> names = pop_last(2);
      push_global(names[0].as_string(), names[1].as_string());
      return true;
    }
    case Opcode::kReduce: {
      const std::vector<Value> call = pop_last(2);
      reduce(call[0].as_global(), copy_args(call[1]));
      return true;
    }
    case Opcode::kFrozenSet: {
      push_sequence(Value::Kind::kList, pop_to_mark());
      reduce({"__builtin__", "frozenset"}, pop_last(1));
      return true;
    }
    case Opcode::kNewObj:
      new_object();
      return true;
    case Opcode::kBuild:
      build();
      return true;
    case Opcode::kBinPersId:
      push_storage(pop());
      return true;
    default:
      return false;
  }
}

void PickleDecoder::push_global(std::string module, std::string name) {
  if (module.empty() || name.empty()) throw ValueError("names a class without module or name");
  push(Value::Global{std::move(module), std::move(name)});
}

std::vector<Value> PickleDecoder::copy_args(const Value& value) {
  if (value.kind() != Value::Kind::kTuple) value.fail("a tuple of arguments");
  return copy_items(value);
}

std::vector<Value> PickleDecoder::copy_items(const Value& value) {
  for (const Value& item : *value.find_items()) hold(kValueBytes + copied_bytes(item));
  return *value.find_items();
}

void PickleDecoder::new_object() {
  const std::vector<Value> call = pop_last(2);
  Value::Object object;
  object.type = call[0].as_global();
  object.args = copy_args(call[1]);
  push_object(std::move(object));
}

void PickleDecoder::reduce(const Value::Global& function, std::vector<Value> args) {
  if (reduce_known(function, args)) return;
  Value::Object object;
  object.type = function;
  object.call = true;
  object.args = std::move(args);
  push_object(std::move(object));
}

bool PickleDecoder::reduce_known(const Value::Global& function, const std::vector<Value>& args) {
  const auto is = [&](std::string_view module, std::string_view name) {
    return function.module == module && function.name == name;
  };
  const bool builtin = function.module == "__builtin__" || function.module == "builtins";
  if (is("torch._utils", "_rebuild_tensor_v2")) {
    push_tensor(args);
  } else if (is("torch._utils", "_rebuild_parameter") && args.size() >= 2) {
    hold(kTensorBytes);
    TensorRecord tensor = args[0].as_tensor();
    tensor.requires_grad = args[1].as_bool();
    push(std::move(tensor));
  } else if (is("torch._tensor", "_rebuild_from_type_v2") && args.size() >= 3) {
    // A tensor with Python attributes: (rebuild, class, its arguments, attributes).
    if (args[0].as_global() == function) args[0].fail("the function that rebuilds a tensor");
    reduce(args[0].as_global(), copy_args(args[2]));
    if (!top().is_tensor()) top().fail("a tensor");
  } else if (is("collections", "OrderedDict") && args.empty()) {
    push_mapping(Value::Kind::kOrderedDict);
  } else if (is("torch", "Size") && args.size() == 1 && args[0].is_sequence()) {
    const Shape shape = args[0].as_ints();
    push_sequence(Value::Kind::kSize, {shape.begin(), shape.end()});
  } else if (builtin && function.name == "set" && args.size() == 1 && args[0].is_sequence()) {
    push_sequence(Value::Kind::kSet, copy_items(args[0]));
  } else if (is("_codecs", "encode") && args.size() == 2) {
    if (args[1].as_string() != "latin1") args[1].fail("'latin1'");
    hold(2 * copied_bytes(args[0]));
    push(Value::bytes(latin1_from_utf8(args[0].as_string())));
  } else if (builtin && function.name == "bytes" && args.empty()) {
    push(Value::bytes(""));
  } else {
    return false;
  }
  return true;
}

// Attributes. Those of an OrderedDict (the _metadata of a state_dict) or a tensor say nothing that
// we need.
void PickleDecoder::build() {
  Value state = pop();
  Value& target = top();
  if (target.kind() == Value::Kind::kOrderedDict || target.is_tensor()) return;
  if (!target.is_object() || is_storage(target)) target.fail("an object to set the state of");
  Value::Object& object = *std::get<std::shared_ptr<Value::Object>>(target.data_);
  if (object.state) throw ValueError("sets the state of an object twice");
  object.state = std::make_shared<Value>(std::move(state));
}

// ('storage', torch.FloatStorage, key, location, numel)
void PickleDecoder::push_storage(const Value& id) {
  const bool is_tuple = id.kind() == Value::Kind::kTuple && id.size() == 5;
  if (!is_tuple || (*id.find_items())[0] != Value("storage")) {
    id.fail("a persistent id of a torch storage");
  }
  const std::vector<Value>& fields = *id.find_items();
  const Value::Global& type = fields[1].as_global();
  const auto dtype = type.module == "torch" ? dtype_of_storage_class(type.name) : std::nullopt;
  if (!dtype) {
    throw ValueError("holds a " + type.module + "." + type.name +
                     ", a kind of tensor that is not supported");
  }
  const std::string& key = fields[2].as_string();
  const int64_t numel = fields[4].as_int();
  const auto [known, is_new] = storage_index_.emplace(key, storages_.size());
  if (is_new) {
    hold(kTensorBytes + 4 * key.size());
    if (numel < 0) {
      throw ValueError("storage " + key + " has " + std::to_string(numel) + " elements");
    }
    storages_.push_back({key, *dtype, numel, open_storage_(key, *dtype, numel)});
  }
  const Storage& storage = storages_[known->second];
  if (storage.dtype != *dtype || storage.numel != numel) {
    throw ValueError("describes storage " + key + " in two ways");
  }
  Value::Object stand_in;
  stand_in.type = kStorageType;
  stand_in.args = {static_cast<int64_t>(known->second)};
  push_object(std::move(stand_in));
}

// (storage, offset, sizes, strides, requires_grad, hooks[, metadata])
void PickleDecoder::push_tensor(const std::vector<Value>& args) {
  if (args.size() < 6 || !is_storage(args[0])) throw ValueError("makes a tensor without a storage");
  const auto index = static_cast<size_t>(args[0].as_object().args[0].as_int());
  const Storage& storage = storages_[index];
  const int64_t offset = args[1].as_int();
  hold(kTensorBytes);
  if (args[2].size() > kMaxDims) args[2].fail("at most 64 dimensions");
  if (args[3].size() > kMaxDims) args[3].fail("at most 64 strides");
  TensorRecord tensor{storage.dtype, args[2].as_shape(), args[4].as_bool(), nullptr};
  const Shape strides = args[3].as_ints();
  const int64_t numel = tensor.numel();
  const bool contiguous =
      strides.size() == tensor.shape.size() && (numel == 0 || is_contiguous(tensor.shape, strides));
  const bool outside =
      offset < 0 || offset > storage.numel || (contiguous && numel > storage.numel - offset);
  if (strides.size() != tensor.shape.size() || outside) {
    throw ValueError("storage " + storage.key + " of " + std::to_string(storage.numel) +
                     " elements does not hold a tensor of shape " + to_string(tensor.shape) +
                     " and strides " + to_string(strides) + " at " + std::to_string(offset));
  }
  if (contiguous) {
    tensor.bytes = view(index, offset, numel);
  } else {
    tensor.bytes =
        std::make_shared<StridedView>(storage.bytes, element_size(storage.dtype),
                                      static_cast<uint64_t>(offset), tensor.shape, strides);
  }
  push(std::move(tensor));
}

BytesPtr PickleDecoder::view(size_t index, int64_t offset, int64_t numel) {
  const Storage& storage = storages_[index];
  if (numel == storage.numel) return storage.bytes;
  BytesPtr& known = views_[{index, offset, numel}];
  const uint64_t size = element_size(storage.dtype);
  if (!known) {
    known = std::make_shared<SubRange>(storage.bytes, static_cast<uint64_t>(offset) * size,
                                       static_cast<uint64_t>(numel) * size);
  }
  return known;
}

}  // namespace anymesh
