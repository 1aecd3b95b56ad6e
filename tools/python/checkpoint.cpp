#include "tools/python/checkpoint.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <span>

#include "framework/format/reshard.h"
#include "framework/format/sharded.h"
#include "framework/format/torch_file.h"
#include "framework/format/whole.h"
#include "framework/util/errors.h"
#include "framework/util/parallel_for.h"
#include "framework/util/process.h"
#include "tools/ckpt/ckpt.h"
#include "tools/python/job.h"
#include "tools/python/values.h"

namespace anymesh::python {
namespace {

namespace nb = nanobind;
namespace fs = std::filesystem;
using Array = nb::ndarray<nb::array_api, nb::device::cpu>;

constexpr uint64_t kTask = 4 << 20;  // bytes that a thread reads at once, whole elements

// A checkpoint that stays open for the tensors that are read from it.
struct Opened {
  RecordChecksums checks;  // first: the sources refer to it
  Checkpoint checkpoint;
  std::optional<CheckpointMesh> mesh;
  std::vector<std::string> notes;
};
using OpenedPtr = std::shared_ptr<Opened>;

// A tensor in the files.
struct Tensor {
  OpenedPtr opened;
  TensorRecord record;
};

struct Parameter {
  OpenedPtr opened;
  SavedParameter saved;
};

OpenedPtr open(const fs::path& path, const std::string& tag, int threads) {
  const nb::gil_scoped_release released;
  set_process_limits();  // a descriptor for each file
  const auto opened = std::make_shared<Opened>();
  const fs::path folder = resolve_tag(path, tag, &opened->notes);
  if (checkpoint_kind(folder) == Checkpoint::Kind::kOrdinary) {
    const auto ranks = std::make_shared<const ShardedCheckpoint>(
        open_sharded_checkpoint(folder, threads, &opened->checks));
    opened->checkpoint = checkpoint_of(ranks);
    opened->mesh = mesh_of(*ranks);
  } else {
    opened->checkpoint = open_checkpoint(folder, threads, &opened->checks);
    if (opened->checkpoint.kind == Checkpoint::Kind::kUniversal)
      opened->mesh = mesh_of(opened->checkpoint);
  }
  return opened;
}

nb::tuple shape_of(const Shape& shape) {
  nb::list sizes;
  for (const int64_t size : shape) sizes.append(size);
  return nb::tuple(sizes);
}

nb::object single_number(const Value& number) {
  if (!number) return nb::none();
  if (!number.is_tensor()) return to_python(number, nullptr);
  const double value = number.as_double();
  return is_floating(number.as_tensor().dtype) ? nb::object(nb::float_(value))
                                               : nb::object(nb::int_(number.as_int()));
}

// By DLPack's codes.
nb::dlpack::dtype dlpack_type(DType dtype) {
  using Code = nb::dlpack::dtype_code;
  static const std::map<DType, Code> kCodes = {{DType::kBFloat16, Code::Bfloat},
                                               {DType::kFloat8E4M3fn, Code::Float8_E4M3FN},
                                               {DType::kFloat8E5M2, Code::Float8_E5M2},
                                               {DType::kFloat8E4M3fnuz, Code::Float8_E4M3FNUZ},
                                               {DType::kFloat8E5M2fnuz, Code::Float8_E5M2FNUZ},
                                               {DType::kFloat8E8M0fnu, Code::Float8_E8M0FNU},
                                               {DType::kBool, Code::Bool},
                                               {DType::kInt64, Code::Int},
                                               {DType::kInt32, Code::Int},
                                               {DType::kInt16, Code::Int},
                                               {DType::kInt8, Code::Int},
                                               {DType::kUInt64, Code::UInt},
                                               {DType::kUInt32, Code::UInt},
                                               {DType::kUInt16, Code::UInt},
                                               {DType::kUInt8, Code::UInt}};
  const auto known = kCodes.find(dtype);
  const Code code = known != kCodes.end() ? known->second
                    : is_complex(dtype)   ? Code::Complex
                                          : Code::Float;
  return {static_cast<uint8_t>(code), static_cast<uint8_t>(8 * element_size(dtype)), 1};
}

// Memory for a tensor, aligned as DLPack asks.
std::byte* allocate(uint64_t bytes) {
  void* memory = nullptr;
  if (posix_memalign(&memory, 256, std::max<uint64_t>(bytes, 1)) != 0) throw std::bad_alloc();
  return static_cast<std::byte*>(memory);
}

// Reads tensors into memory of their sizes.
void fill(const std::vector<TensorRecord>& tensors, const std::vector<std::byte*>& memory,
          int threads, const ProgressCallback& progress) {
  struct Task {
    size_t tensor;
    uint64_t begin, end;
  };
  std::vector<Task> tasks;
  uint64_t total = 0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const uint64_t bytes = tensors[i].nbytes();
    for (uint64_t at = 0; at < bytes; at += kTask)
      tasks.push_back({i, at, std::min(at + kTask, bytes)});
    total += bytes;
  }
  ProgressCounter counter(total, progress);
  parallel_for(tasks.size(), threads, [&](size_t i) {
    const auto& [tensor, begin, end] = tasks[i];
    tensors[tensor].bytes->read(begin, {memory[tensor] + begin, end - begin});
    counter.add(end - begin);
  });
}

std::vector<TensorRecord> records_of(const std::vector<Tensor>& tensors) {
  std::vector<TensorRecord> records;
  for (const Tensor& tensor : tensors) records.push_back(tensor.record);
  return records;
}

// Reads tensors into new memory.
std::vector<Array> read(const std::vector<Tensor>& tensors, int threads, const Listener& listener) {
  const std::vector<TensorRecord> records = records_of(tensors);
  std::vector<std::unique_ptr<std::byte, decltype(&std::free)>> memory;
  std::vector<std::byte*> targets;
  for (const TensorRecord& record : records)
    targets.push_back(memory.emplace_back(allocate(record.nbytes()), std::free).get());
  Job(listener).run(
      [&](const ProgressCallback& progress) { fill(records, targets, threads, progress); });
  std::vector<Array> arrays;
  for (size_t i = 0; i < records.size(); ++i) {
    const nb::capsule owner(memory[i].release(), [](void* held) noexcept { std::free(held); });
    const std::vector<size_t> sizes(records[i].shape.begin(), records[i].shape.end());
    arrays.emplace_back(targets[i], sizes.size(), sizes.data(), owner, nullptr,
                        dlpack_type(records[i].dtype));
  }
  return arrays;
}

// Reads tensors into arrays of the caller's, of as many bytes.
void read_into(const std::vector<Tensor>& tensors,
               const std::vector<nb::ndarray<nb::c_contig, nb::device::cpu>>& arrays, int threads,
               const Listener& listener) {
  const std::vector<TensorRecord> records = records_of(tensors);
  std::vector<std::byte*> targets;
  for (size_t i = 0; i < records.size(); ++i) {
    if (i >= arrays.size() || arrays[i].nbytes() != records[i].nbytes())
      throw_error("expected an array of ", records[i].nbytes(), " bytes for each tensor");
    targets.push_back(static_cast<std::byte*>(arrays[i].data()));
  }
  Job(listener).run(
      [&](const ProgressCallback& progress) { fill(records, targets, threads, progress); });
}

nb::object states_of(const Parameter& parameter) {
  nb::dict states;
  for (const auto& [name, tensor] : parameter.saved.states)
    states[to_str(name)] = nb::cast(Tensor{parameter.opened, as_stored(tensor)});
  return states;
}

// Returns (pp, tp, dp, begin, numel, file, record, offset, bytes) for each piece of a state.
nb::list pieces_of(const Parameter& parameter, const nb::str& state_name) {
  const std::string state = to_bytes(state_name);
  nb::list pieces;
  for (const ParameterShard& shard : *parameter.saved.shards) {
    const auto found = shard.states.find(state);
    if (found == shard.states.end()) continue;
    for (const ShardFragment& fragment : found->second.fragments)
      for (const auto& [place, begin, numel] : places_of(fragment, found->second.dtype))
        pieces.append(nb::make_tuple(shard.pp_rank, shard.tp_rank, fragment.dp_rank, begin, numel,
                                     to_str(place.file.string()), to_str(place.record),
                                     place.offset, place.size));
  }
  return pieces;
}

nb::object mesh_tuple(const Opened& opened) {
  if (!opened.mesh) return nb::none();
  const CheckpointMesh& mesh = *opened.mesh;
  return nb::make_tuple(mesh.tp_size, mesh.pp_size, mesh.dp_size, mesh.ep_size, mesh.stage);
}

// A wrapper of the checkpoint's pointer, so that tensors can share it.
struct Handle {
  OpenedPtr opened;
  const Checkpoint& checkpoint() const { return opened->checkpoint; }
};

std::string format_of(const Handle& handle) {
  using Kind = Checkpoint::Kind;
  const Checkpoint& checkpoint = handle.checkpoint();
  if (checkpoint.kind == Kind::kOrdinary) return "deepspeed";
  if (checkpoint.kind == Kind::kUniversal) return "universal";
  if (checkpoint.kind == Kind::kDcp) return "dcp";
  const fs::path entry =
      fs::is_directory(checkpoint.path) ? weights_entry(checkpoint.path) : checkpoint.path;
  return entry.string().find("safetensors") != std::string::npos ? "safetensors" : "torch";
}

// Returns the first model-states file without the model's weights.
nb::object metadata_of(const Handle& handle, const nb::callable& wrap) {
  const Value& metadata = handle.checkpoint().metadata;
  if (!metadata) return nb::dict();
  Value rest = metadata;
  rest.erase(keys::kModule);
  return to_python(rest, [&](const TensorRecord& tensor) {
    return wrap(nb::cast(Tensor{handle.opened, tensor}));
  });
}

Parameter parameter_of(const Handle& handle, const nb::str& name) {
  const std::string text = to_bytes(name);
  const nb::gil_scoped_release released;
  return {handle.opened, handle.checkpoint().parameter(text)};
}

// Returns the names of an export to float32, its tensors, and for each name the place of its
// tensor: tied ones share theirs.
nb::tuple exported(const Handle& handle, bool exclude_frozen, const std::string& dtype) {
  NamedTensors tensors;
  std::vector<const ByteSource*> bytes;  // the same ones for tied weights
  {
    const nb::gil_scoped_release released;
    tensors = fp32_tensors(handle.checkpoint(), exclude_frozen);
    for (const auto& [name, tensor] : tensors) bytes.push_back(tensor.bytes.get());
    if (!dtype.empty())
      for (auto& [name, tensor] : tensors)
        if (is_floating(tensor.dtype)) tensor = as_dtype(tensor, parse_output_dtype(dtype));
  }
  std::map<std::pair<const ByteSource*, Shape>, size_t> known;
  nb::list names, unique, places;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const TensorRecord& tensor = tensors[i].second;
    const auto [place, is_new] = known.emplace(std::pair(bytes[i], tensor.shape), known.size());
    if (is_new) unique.append(nb::cast(Tensor{handle.opened, tensor}));
    names.append(to_str(tensors[i].first));
    places.append(place->second);
  }
  return nb::make_tuple(names, unique, places);
}

}  // namespace

void add_checkpoint(nb::module_& module) {
  nb::class_<Tensor>(module, "Tensor")
      .def_prop_ro("shape", [](const Tensor& self) { return shape_of(self.record.shape); })
      .def_prop_ro("dtype",
                   [](const Tensor& self) { return std::string(dtype_name(self.record.dtype)); })
      .def_prop_ro("nbytes", [](const Tensor& self) { return self.record.nbytes(); })
      .def("to", [](const Tensor& self, const std::string& dtype) {
        return Tensor{self.opened, as_dtype(self.record, parse_output_dtype(dtype))};
      });
  nb::class_<Parameter>(module, "Parameter")
      .def_prop_ro("states", states_of)
      .def_prop_ro("step", [](const Parameter& self) { return single_number(self.saved.step); })
      .def("pieces", pieces_of);
  nb::class_<Handle>(module, "Checkpoint")
      .def("__init__",
           [](Handle* self, const nb::str& path, const nb::str& tag, int threads) {
             new (self) Handle{open(to_bytes(path), to_bytes(tag), threads)};
           })
      .def_prop_ro("path",
                   [](const Handle& self) { return to_str(self.checkpoint().path.string()); })
      .def_prop_ro("format", format_of)
      .def_prop_ro("description", [](const Handle& self) { return self.checkpoint().description; })
      .def_prop_ro("notes", [](const Handle& self) { return to_list(self.opened->notes); })
      .def_prop_ro("mesh", [](const Handle& self) { return mesh_tuple(*self.opened); })
      .def_prop_ro("step",
                   [](const Handle& self) {
                     const Value& metadata = self.checkpoint().metadata;
                     return single_number(metadata ? step_of(metadata) : Value());
                   })
      .def_prop_ro("states_refused",
                   [](const Handle& self) { return self.checkpoint().states_refused; })
      .def_prop_ro("names", [](const Handle& self) { return to_list(self.checkpoint().names()); })
      .def("metadata", metadata_of)
      .def("parameter", parameter_of)
      .def("exported", exported)
      .def("finish_checks", [](const Handle& self, int threads) {
        const nb::gil_scoped_release released;
        self.opened->checks.finish(threads);
      });
  module.def("read", read);
  module.def("read_into", read_into);
}

}  // namespace anymesh::python
