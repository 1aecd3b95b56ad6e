#include "framework/checkpoint/load/open_for_all.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <sstream>

#include "framework/checkpoint/load/find_loadable_tags.h"
#include "framework/checkpoint/torch_bridge.h"
#include "framework/comm/agreement.h"
#include "framework/format/sharded.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMemory = uint64_t{1} << 40;  // no limit: the text is our own

// The elements [begin, end) of uncut tensors, by the parameters' names.
struct Range {
  int64_t begin = INT64_MAX, end = 0;
};
using Ranges = std::map<std::string, Range>;

// Returns the smallest ranges that hold what this rank reads.
Ranges ranges_of(const CheckpointedRun& run) {
  Ranges ranges;
  const auto add = [&](const ParamSpec& spec, int64_t begin, int64_t count) {
    const ShardLayout layout = layout_of(spec, run.grid.topology, run.grid.coord);
    for (const std::string& name : {spec.name, spec.other_name}) {
      Range& range = ranges[name];
      layout.for_each_run(begin, count, [&](int64_t full, int64_t, int64_t n) {
        range.begin = std::min(range.begin, full);
        range.end = std::max(range.end, full + n);
      });
    }
  };
  for (const auto& frozen : run.optimizer.frozen())
    add(frozen.spec, frozen.start, frozen.weight.numel());
  for (const ParamSpec& spec : run.stage.params())
    if (spec.buffer) add(spec, 0, spec.tensor.numel());
  for (const auto& group : run.optimizer.groups()) {
    for (const auto& piece : group.pieces)
      add(group.params[piece.param], piece.param_start, piece.master.numel());
    for (size_t i = 0; i < group.params.size(); ++i)
      if (!group.whole_states[i].empty()) add(group.params[i], 0, 0);
  }
  return ranges;
}

std::string text_of(const Ranges& ranges) {
  std::ostringstream text;
  for (const auto& [name, range] : ranges)
    text << range.begin << ' ' << range.end << ' ' << name << '\n';
  return text.str();
}

Ranges ranges_in(const std::string& text) {
  Ranges ranges;
  std::istringstream in(text);
  Range range;
  for (std::string name; in >> range.begin >> range.end && in.ignore() && std::getline(in, name);)
    ranges[name] = range;
  return ranges;
}

// A ShardFragment as it is sent; `source` is the place of its bytes in the part's list.
struct SentFragment {
  int64_t source, dp_rank, begin, numel, offset;
};

// The bytes lie in several places, or are computed.
struct NotInOnePlace {};

// Returns the place of a tensor's storage: type, size, offset, converted type, record and file.
std::string place_of(const TensorRecord& tensor) {
  const uint64_t size = tensor.bytes ? tensor.bytes->size() : 0;
  FileRange place;
  if (size > 0) {
    const std::vector<FileRange> places = tensor.bytes->places(0, size);
    if (places.size() != 1 || places[0].record.empty()) throw NotInOnePlace();
    place = places[0];
    if (place.record.find('\n') != std::string::npos) throw NotInOnePlace();
  }
  return c10::str(dtype_name(tensor.dtype), '\n', place.size, '\n', place.offset, '\n', place.dtype,
                  '\n', place.record, '\n', place.file.string());
}

// Writes the part of a checkpoint that one rank needs, as a pickle whose storages are places.
class PartWriter {
 public:
  PartWriter(const Checkpoint& checkpoint, const ShardedCheckpoint& ranks, bool weights_only)
      : checkpoint_(checkpoint), ranks_(ranks), weights_only_(weights_only) {}

  std::string write(const Ranges& ranges) {
    std::vector<Value::Entry> parameters;
    std::set<std::string> others;
    for (const auto& [wanted, range] : ranges) {
      if (!checkpoint_.contains(wanted)) continue;
      const std::string& name = checkpoint_.first_name(wanted);
      const auto shards = ranks_.parameters.find(name);
      if (shards == ranks_.parameters.end()) {
        others.insert(name);
      } else {
        parameters.emplace_back(name, sent(name, shards->second, range));
      }
    }
    std::vector<Value> tensors;
    for (const NamedTensors& all : ranks_.model_tensors) {
      auto& rank = tensors.emplace_back(Value::list());
      for (const auto& [name, tensor] : all)
        if (others.contains(name)) rank.push_back(Value::tuple({name, tensor}));
    }
    return encode_pickle(
        Value::dict({{"mesh", Value::list({ranks_.stage, ranks_.tp_size, ranks_.pp_size,
                                           ranks_.dp_size, ranks_.weights_only})},
                     {"names", Value::list_of(checkpoint_.names())},
                     {"states_refused", ranks_.states_refused},
                     {"model_states", model_states()},
                     {"optimizer_state", weights_only_ ? Value() : ranks_.optimizer_state},
                     {"parameters", Value::dict(std::move(parameters))},
                     {"tensors", Value::list(std::move(tensors))},
                     {"sources", Value::list(std::move(sources_))}}),
        place_of);
  }

 private:
  // Returns what merging and buffers need.
  Value model_states() const {
    Value states = Value::list();
    for (const Value& state : ranks_.model_states) {
      Value own = Value::dict();
      for (const auto key :
           {keys::kUniversalInfo, keys::kSharedParams, keys::kBufferNames, keys::kParamShapes,
            keys::kAutoEpLayers, keys::kWholeExperts, keys::kFolding, keys::kDsConfig})
        if (const Value value = state.find(key)) own.set(key, value);
      if (const Value whole = state.find(keys::kWholeStates); whole && !weights_only_)
        own.set(keys::kWholeStates, whole);
      const Value module = state.find(keys::kModule).value_or(Value::dict());
      Value buffers = Value::dict();
      for (const std::string& name : buffer_names(state))
        if (const Value buffer = module.find(name)) buffers.set(name, buffer);
      states.push_back(own.set(keys::kModule, buffers));
    }
    return states;
  }

  Value sent(const std::string& name, const std::vector<ParameterShard>& shards,
             const Range& range) {
    const SavedParameter parameter = checkpoint_.parameter(name);
    Value result = Value::list();
    for (const ParameterShard& shard : shards) {
      const ShardLayout slice = parameter.slice(shard.tp_rank);
      // Pieces of an affine map may lie anywhere.
      const bool any = !parameter.cut.pieces.empty();
      const auto [first, last] = range.begin < range.end ? range : Range{0, 0};
      const int64_t begin = any ? 0 : slice.shard_position(first),
                    end = any ? INT64_MAX : slice.shard_position(last);
      std::vector<Value::Entry> states;
      for (const auto& [state, held] : shard.states) {
        if (weights_only_ && state != kFp32State) continue;
        const bool factored = held.factored.has_value();
        states.emplace_back(
            state, Value::tuple(
                       {Value::dtype(held.dtype), factored ? Value::size(*held.factored) : Value(),
                        fragments(held, factored ? 0 : begin, factored ? INT64_MAX : end)}));
      }
      const Value step = shard.step ? Value(shard.step.as_double()) : Value();
      result.push_back(Value::tuple({shard.pp_rank, shard.tp_rank, Value::size(shard.shape), step,
                                     Value::dict(std::move(states))}));
    }
    return result;
  }

  Value fragments(const ShardState& held, int64_t begin, int64_t end) {
    std::string sent;
    for (const ShardFragment& fragment : held.fragments) {
      if (fragment.begin >= end || fragment.begin + fragment.numel <= begin) continue;
      const auto [known, is_new] = places_.try_emplace(fragment.bytes.get(), places_.size());
      if (is_new) {
        const auto count = static_cast<int64_t>(fragment.bytes->size() / element_size(held.dtype));
        sources_.emplace_back(TensorRecord{held.dtype, {count}, false, fragment.bytes});
      }
      const SentFragment one{static_cast<int64_t>(known->second), fragment.dp_rank, fragment.begin,
                             fragment.numel, static_cast<int64_t>(fragment.offset)};
      sent.append(reinterpret_cast<const char*>(&one), sizeof one);
    }
    return Value::bytes(std::move(sent));
  }

  const Checkpoint& checkpoint_;
  const ShardedCheckpoint& ranks_;
  const bool weights_only_;
  std::unordered_map<const ByteSource*, size_t> places_;
  std::vector<Value> sources_;
};

// Opens the places in a part. Each record is opened once.
class PlaceReader {
 public:
  explicit PlaceReader(RecordChecksums& checks) : checks_(checks) {}

  BytesPtr open(const std::string& text, DType dtype) {
    std::istringstream in(text);
    std::array<std::string, 5> lines;  // type, size, offset, converted type, record
    for (std::string& line : lines) std::getline(in, line);
    std::string file;
    std::getline(in, file, '\0');
    const uint64_t size = std::stoull(lines[1]), offset = std::stoull(lines[2]);
    if (size == 0) return std::make_shared<OwnedBytes>(std::vector<std::byte>());
    const auto& [bytes, start] = record(file, lines[4]);
    const auto part = std::make_shared<SubRange>(bytes, offset - start, size);
    if (lines[3].empty()) return part;
    const DType held = dtype_of_name(lines[3]).value();
    const auto count = static_cast<int64_t>(size / element_size(held));
    return as_dtype({held, {count}, false, part}, dtype).bytes;
  }

 private:
  using Opened = std::pair<BytesPtr, uint64_t>;  // a record and its offset in the file

  const Opened& record(const std::string& file, const std::string& name) {
    const auto [known, is_new] = records_.try_emplace({file, name});
    if (!is_new) return known->second;
    auto zip = zips_.find(file);
    if (zip == zips_.end()) zip = zips_.emplace(file, open_torch_file(file)).first;
    const ZipReader::Record* found = zip->second.find(name);
    if (!found) throw DamagedFile(file + ": has no record " + name);
    return known->second = {zip->second.open(*found, &checks_), found->offset};
  }

  RecordChecksums& checks_;
  std::map<std::string, ZipReader> zips_;
  std::map<std::pair<std::string, std::string>, Opened> records_;
};

ShardState state_in(const Value& sent, const Value& sources) {
  ShardState state{.dtype = dtype_of_name(sent.at(0).as_global().name).value()};
  if (const Value factored = sent.at(1)) state.factored = factored.as_shape();
  const std::string fragments = sent.at(2).as_bytes();
  for (size_t at = 0; at < fragments.size(); at += sizeof(SentFragment)) {
    SentFragment one;
    std::memcpy(&one, fragments.data() + at, sizeof one);
    state.fragments.push_back({static_cast<int>(one.dp_rank), one.begin, one.numel,
                               sources.at(static_cast<size_t>(one.source)).as_tensor().bytes,
                               static_cast<uint64_t>(one.offset)});
  }
  return state;
}

// Returns the part of a checkpoint that PartWriter wrote.
Checkpoint part_in(const std::string& text, const fs::path& folder, RecordChecksums& checks) {
  PlaceReader places(checks);
  const Value part = decode_pickle(
      std::as_bytes(std::span(text)),
      [&](const std::string& key, DType dtype, int64_t) { return places.open(key, dtype); },
      folder.string(), kMemory);
  const std::vector<int64_t> mesh = part.at("mesh").as_ints();
  auto ranks = std::make_shared<ShardedCheckpoint>(
      ShardedCheckpoint{.folder = folder,
                        .stage = static_cast<int>(mesh[0]),
                        .weights_only = mesh[4] != 0,
                        .tp_size = static_cast<int>(mesh[1]),
                        .pp_size = static_cast<int>(mesh[2]),
                        .dp_size = static_cast<int>(mesh[3]),
                        .model_states = part.at("model_states").items(),
                        .optimizer_state = part.at("optimizer_state"),
                        .states_refused = part.at("states_refused").as_string(),
                        .all_names = part.at("names").as_strings()});
  ranks->experts = ExpertSpread::from(ranks->model_states);
  const Value sources = part.at("sources");
  for (const auto& [name, shards] : part.at("parameters").entries()) {
    auto& all = ranks->parameters[name.as_string()];
    for (const Value& sent : shards.items()) {
      ParameterShard& shard =
          all.emplace_back(ParameterShard{.pp_rank = static_cast<int>(sent.at(0).as_int()),
                                          .tp_rank = static_cast<int>(sent.at(1).as_int()),
                                          .shape = sent.at(2).as_shape(),
                                          .step = sent.at(3)});
      for (const auto& [state, held] : sent.at(4).entries())
        shard.states[state.as_string()] = state_in(held, sources);
    }
  }
  for (const Value& rank : part.at("tensors").items()) {
    NamedTensors& tensors = ranks->model_tensors.emplace_back();
    for (const Value& named : rank.items())
      tensors.emplace_back(named.at(0).as_string(), named.at(1).as_tensor());
  }
  return checkpoint_of(std::move(ranks));
}

}  // namespace

OpenedForAll open_for_all(const fs::path& folder, const CheckpointedRun& run, bool weights_only,
                          bool by_itself, RecordChecksums& checks) {
  Communicator& world = *run.grid.world;
  // A rank that opens by itself counts as a host of its own.
  const std::vector<std::string> hosts =
      gather_strings(world, by_itself ? std::to_string(world.rank()) : host_name());
  const auto mine = std::ranges::find(hosts, hosts[static_cast<size_t>(world.rank())]);
  const int opener = static_cast<int>(mine - hosts.begin());
  const bool opens = opener == world.rank();
  std::map<int, std::string> others;  // on this host: the ranges, then the part, by rank
  if (!opens) send_string(world, text_of(ranges_of(run)), opener);
  for (int rank = opener + 1; opens && rank < world.size(); ++rank)
    if (hosts[static_cast<size_t>(rank)] == *mine) others[rank] = receive_string(world, rank);

  OpenedForAll opened;
  read_together(world, folder, [&] {
    if (!opens) return;
    if (others.empty() || checkpoint_kind(folder) != Checkpoint::Kind::kOrdinary) {
      opened.checkpoint = open_checkpoint(folder, 1, &checks);
      for (auto& [rank, text] : others) text.clear();
      return;
    }
    const auto threads = static_cast<int>(others.size()) + 1;  // the others wait
    const auto ranks = std::make_shared<const ShardedCheckpoint>(
        open_sharded_checkpoint(folder, threads, &checks));
    opened.checkpoint = checkpoint_of(ranks);
    for (auto& [rank, text] : others) {
      try {
        text = PartWriter(opened.checkpoint, *ranks, weights_only).write(ranges_in(text));
      } catch (const NotInOnePlace&) {
        text.clear();
      }
    }
  });
  for (const auto& [rank, text] : others) send_string(world, text, rank);
  const std::string part = opens ? "" : receive_string(world, opener);
  read_together(world, folder, [&] {
    if (opens) return;
    opened.by_another = !part.empty();
    opened.checkpoint =
        part.empty() ? open_checkpoint(folder, 1, &checks) : part_in(part, folder, checks);
  });
  return opened;
}

}  // namespace anymesh
