// What a pickle says about classes: calls by name, tensors among them, which are never made.

#include "framework/checkpoint/format/pickle_decoder.h"

namespace anymesh {
namespace {

constexpr size_t kMaxDims = 64;       // torch's own limit
constexpr uint64_t kOpenBytes = 224;  // of a storage that was opened

std::string latin1_from_utf8(const std::string& text) {
  std::string bytes;
  bytes.reserve(text.size());
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

bool PickleDecoder::is_storage(const Value& value) const {
  return value.is_object() && value.as_object().type.get() == &storage_type_.as_global();
}

Value PickleDecoder::object(const Value& type, bool call, const std::vector<Value>& args) {
  type.as_global();
  Value::Object object;
  object.type = std::get<std::shared_ptr<const Value::Global>>(type.data_);
  object.call = call;
  object.args = args;
  return object;
}

void PickleDecoder::step_object(const Token& token) {
  switch (token.opcode) {
    case Opcode::kGlobal:
      return push(global(token.text, token.name));
    case Opcode::kStackGlobal: {
      const std::vector<Value> names = pop_last(2);
      return push(global(names[0].as_string(), names[1].as_string()));
    }
    case Opcode::kReduce:
      return push_new(pop_call(true));
    case Opcode::kNewObj:
      return push_new(pop_call(false));
    case Opcode::kFrozenSet: {
      push_new(Value::list(pop_to_mark()));
      return push_new(object(global("__builtin__", "frozenset"), true, pop_last(1)));
    }
    case Opcode::kBuild:
      return build();
    case Opcode::kBinPersId:
      return push_new(storage(pop()));
    default:
      throw ValueError("holds the opcode " + std::to_string(static_cast<int>(token.opcode)) +
                       ", which no checkpoint has");
  }
}

Value PickleDecoder::global(std::string_view module, std::string_view name) {
  if (module.empty() || name.empty()) throw ValueError("names a class without module or name");
  hold(kShared<Value::Global> + text_bytes(module.size()) + text_bytes(name.size()));
  return Value::Global{std::string(module), std::string(name)};
}

const std::vector<Value>& PickleDecoder::arguments(const Value& tuple) {
  if (tuple.kind() != Value::Kind::kTuple) tuple.fail("a tuple of arguments");
  return copyable(tuple);
}

// A sequence's items, for which there is room once more.
const std::vector<Value>& PickleDecoder::copyable(const Value& sequence) {
  const auto& items = *sequence.find_items();
  const uint64_t bytes = block(items.size() * sizeof(Value));
  hold(bytes);
  held_ -= bytes;
  return items;
}

// What type(*args) gives or, where that is not `call`, type.__new__(type, *args).
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
  const Value::Global& function = type.as_global();
  const auto is = [&](std::string_view module, std::string_view name) {
    return function.module == module && function.name == name;
  };
  const bool builtin = function.module == "__builtin__" || function.module == "builtins";
  if (is("torch._utils", "_rebuild_tensor_v2")) return tensor(args);
  if (is("torch._utils", "_rebuild_parameter") && args.size() >= 2) {
    TensorRecord parameter = args[0].as_tensor();
    hold(kShared<TensorRecord> + block(parameter.shape.size() * sizeof(int64_t)));
    parameter.requires_grad = args[1].as_bool();
    return parameter;
  }
  if (is("torch._tensor", "_rebuild_from_type_v2") && args.size() >= 3) {
    // A tensor with Python attributes: (rebuild, class, its arguments, attributes).
    if (args[0] == type) args[0].fail("the function that rebuilds a tensor");
    const Value rebuilt = reduce(args[0], arguments(args[2]));
    if (!rebuilt.is_tensor()) rebuilt.fail("a tensor");
    return rebuilt;
  }
  if (is("collections", "OrderedDict") && args.empty()) return Value::ordered_dict();
  if (is("torch", "Size") && args.size() == 1 && args[0].is_sequence()) {
    if (args[0].size() > kMaxDims) args[0].fail("at most 64 dimensions");
    hold(kShared<Value::Sequence> + block(args[0].size() * sizeof(Value)));
    return Value::size(args[0].as_ints());
  }
  if (builtin && function.name == "set" && args.size() == 1 && args[0].is_sequence())
    return Value::set(copyable(args[0]));
  if (is("_codecs", "encode") && args.size() == 2) {
    if (args[1].as_string() != "latin1") args[1].fail("'latin1'");
    hold(kShared<Value::Raw> + text_bytes(args[0].as_string().size()));
    return Value::bytes(latin1_from_utf8(args[0].as_string()));
  }
  if (builtin && function.name == "bytes" && args.empty()) return Value::bytes("");
  return object(type, true, args);
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
Value PickleDecoder::storage(const Value& id) {
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
  const auto [known, is_new] = storages_.try_emplace(key, Storage{*dtype, numel, nullptr});
  if (is_new) {
    hold(kNode<std::string, Storage> + kBucket + text_bytes(key.size()) + kOpenBytes);
    if (numel < 0) {
      throw ValueError("storage " + key + " has " + std::to_string(numel) + " elements");
    }
    known->second.bytes = open_storage_(key, *dtype, numel);
  }
  if (known->second.dtype != *dtype || known->second.numel != numel) {
    throw ValueError("describes storage " + key + " in two ways");
  }
  return object(storage_type_, false, {fields[2]});
}

// (storage, offset, sizes, strides, requires_grad, hooks[, metadata])
Value PickleDecoder::tensor(const std::vector<Value>& args) {
  if (args.size() < 6 || !is_storage(args[0])) throw ValueError("makes a tensor without a storage");
  const std::string& key = args[0].as_object().args[0].as_string();
  const Storage& storage = storages_.at(key);
  const int64_t offset = args[1].as_int();
  if (args[2].size() > kMaxDims) args[2].fail("at most 64 dimensions");
  if (args[3].size() > kMaxDims) args[3].fail("at most 64 strides");
  hold(kShared<TensorRecord> + block(args[2].size() * sizeof(int64_t)));
  TensorRecord tensor{storage.dtype, args[2].as_shape(), args[4].as_bool(), nullptr};
  const Shape strides = args[3].as_ints();
  const int64_t numel = tensor.numel();
  const bool contiguous =
      strides.size() == tensor.shape.size() && (numel == 0 || is_contiguous(tensor.shape, strides));
  const bool outside =
      offset < 0 || offset > storage.numel || (contiguous && numel > storage.numel - offset);
  if (strides.size() != tensor.shape.size() || outside) {
    throw ValueError("storage " + key + " of " + std::to_string(storage.numel) +
                     " elements does not hold a tensor of shape " + to_string(tensor.shape) +
                     " and strides " + to_string(strides) + " at " + std::to_string(offset));
  }
  if (contiguous) {
    tensor.bytes = view(storage, offset, numel);
  } else {
    hold(kShared<StridedView> + 2 * block(strides.size() * sizeof(int64_t)));
    tensor.bytes =
        std::make_shared<StridedView>(storage.bytes, element_size(storage.dtype),
                                      static_cast<uint64_t>(offset), tensor.shape, strides);
  }
  return tensor;
}

BytesPtr PickleDecoder::view(const Storage& storage, int64_t offset, int64_t numel) {
  if (numel == storage.numel) return storage.bytes;
  BytesPtr& known = views_[{storage.bytes.get(), offset, numel}];
  const uint64_t size = element_size(storage.dtype);
  if (!known) {
    hold(kShared<SubRange> + block(32 + sizeof(*views_.begin())));
    known = std::make_shared<SubRange>(storage.bytes, static_cast<uint64_t>(offset) * size,
                                       static_cast<uint64_t>(numel) * size);
  }
  return known;
}

}  // namespace anymesh
