// Makes values: Python's containers, and the classes that DeepSpeed's files hold by name.

#include <algorithm>
#include <array>

#include "framework/format/torch_file/value.h"

namespace anymesh {
namespace {

Value make_object(std::string module, std::string name, std::vector<Value> args, Value state,
                  bool call) {
  Value::Object object;
  object.type =
      std::make_shared<const Value::Global>(Value::Global{std::move(module), std::move(name)});
  object.call = call;
  object.args = std::move(args);
  if (state) object.state = std::make_shared<Value>(std::move(state));
  return object;
}

}  // namespace

TensorRecord TensorRecord::slice(int64_t begin, Shape part) const {
  TensorRecord result{dtype, std::move(part), requires_grad, nullptr};
  const uint64_t first = static_cast<uint64_t>(begin) * element_size(dtype);
  result.bytes = std::make_shared<SubRange>(bytes, first, result.nbytes());
  return result;
}

Value::Value(Kind kind, std::vector<Value> items)
    : data_(std::make_shared<Sequence>(Sequence{kind, std::move(items)})) {}
Value::Value(Kind kind, std::vector<Entry> entries)
    : data_(std::make_shared<Mapping>(kind, std::move(entries))) {}
Value::Value(Kind kind, std::string data)
    : data_(std::make_shared<const Raw>(Raw{kind, std::move(data)})) {}

Value Value::list(std::vector<Value> items) { return {Kind::kList, std::move(items)}; }
Value Value::tuple(std::vector<Value> items) { return {Kind::kTuple, std::move(items)}; }
Value Value::set(std::vector<Value> items) { return {Kind::kSet, std::move(items)}; }
Value Value::size(std::span<const int64_t> shape) {
  return {Kind::kSize, std::vector<Value>(shape.begin(), shape.end())};
}
Value Value::dict(std::vector<Entry> entries) { return {Kind::kDict, std::move(entries)}; }
Value Value::ordered_dict(std::vector<Entry> entries) {
  return {Kind::kOrderedDict, std::move(entries)};
}

Value Value::dtype(DType dtype) { return Global{"torch", std::string(dtype_name(dtype))}; }

Value Value::bytes(std::string data) { return {Kind::kBytes, std::move(data)}; }
Value Value::big_int(std::string two_complement) {
  return {Kind::kBigInt, std::move(two_complement)};
}

Value Value::object(std::string module, std::string name, std::vector<Entry> attributes) {
  return make_object(std::move(module), std::move(name), {}, dict(std::move(attributes)), false);
}

Value fragment_address(int64_t numel, int64_t start) {
  return Value::object("deepspeed.utils.tensor_fragment", "fragment_address",
                       {{"numel", numel}, {"start", start}});
}

Value zero_stage_enum(int stage) {
  return make_object("deepspeed.runtime.zero.config", "ZeroStageEnum", {stage}, {}, true);
}

int zero_stage_of(const Value& stage) {
  if (!stage.is_object("getattr")) return static_cast<int>(stage.as_int());
  constexpr std::array names{"disabled", "optimizer_states", "gradients", "weights"};
  const std::vector<Value>& args = stage.as_object().args;
  const auto found = std::find_if(names.begin(), names.end(), [&](const char* name) {
    return args.size() == 2 && args[1].is_string() && args[1].as_string() == name;
  });
  if (found == names.end()) stage.fail("a ZeRO stage");
  return static_cast<int>(found - names.begin());
}

Value loss_scaler(double scale) {
  return Value::object("deepspeed.runtime.fp16.loss_scaler", "LossScaler",
                       {{"cur_scale", scale}, {"dynamic", false}});
}

Value dynamic_loss_scaler(std::vector<Value::Entry> fields) {
  return Value::object("deepspeed.runtime.fp16.loss_scaler", "DynamicLossScaler",
                       std::move(fields));
}

Value argparse_namespace(std::vector<Value::Entry> attributes) {
  return Value::object("argparse", "Namespace", std::move(attributes));
}

void Value::unshare() {
  const auto copy = [](auto& data) {
    using Data = typename std::decay_t<decltype(data)>::element_type;
    data = std::make_shared<Data>(*data);
  };
  if (auto* sequence = std::get_if<std::shared_ptr<Sequence>>(&data_)) copy(*sequence);
  if (auto* mapping = std::get_if<std::shared_ptr<Mapping>>(&data_)) copy(*mapping);
  auto* object = std::get_if<std::shared_ptr<Object>>(&data_);
  if (!object) return;
  copy(*object);
  if ((*object)->state) copy((*object)->state);
}

Value map_tensors(const Value& value,
                  const std::function<TensorRecord(const TensorRecord&)>& change) {
  if (value.is_tensor()) return change(value.as_tensor());
  Value copy = value;
  copy.unshare();
  copy.for_each_child([&](Value& child) { child = map_tensors(child, change); });
  return copy;
}

}  // namespace anymesh
