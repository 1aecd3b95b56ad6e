#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <set>

#include "framework/format/dialects.h"
#include "framework/format/folder.h"
#include "framework/format/layout.h"
#include "framework/format/sharded.h"
#include "framework/format/torch_file.h"
#include "framework/format/whole.h"
#include "framework/util/errors.h"
#include "framework/util/parallel_for.h"
#include "tools/ckpt/ckpt.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;
using Kind = Checkpoint::Kind;
using FileKind = CheckpointFileName::Kind;

constexpr size_t kMostProblems = 40;
constexpr int64_t kMostRanks = 1 << 20;  // that a mesh may have

// Returns whether a shard's optimizer has never seen a nonzero gradient.
bool never_used(const ParameterShard& shard) {
  const auto moment = shard.states.find(kExpAvgSqState);
  return moment != shard.states.end() && !moment->second.fragments.empty() &&
         is_zero(shard_tensor(shard, kExpAvgSqState));
}

class Verifier {
 public:
  Verifier(fs::path path, const CkptOptions& options)
      : path_(std::move(path)), kind_(checkpoint_kind(path_)), options_(options) {}

  int run(std::ostream& out) {
    list_files();
    const int passes = 1 + fs::exists(path_ / kManifestFile) + (kind_ == Kind::kOrdinary);
    read_.emplace(static_cast<uint64_t>(passes) * bytes_of(files_), options_.progress);
    parallel_for(files_.size(), options_.workers, [&](size_t i) {
      if (is_torch_file(files_[i])) attempt([&] { check_file(files_[i]); });
    });
    attempt([&] { check_manifest(); });
    if (!dcp_folders(path_).empty()) attempt([&] { check_items(); });
    if (kind_ == Kind::kOrdinary || kind_ == Kind::kUniversal) {
      attempt([&] { check_file_set(); });
      attempt([&] { check_counters(); });
    }
    const std::set<std::string> before = problems_;
    attempt([&] { kind_ == Kind::kOrdinary ? check_ordinary() : check_whole(); });
    if (!without_crcs_.empty())
      notes_.insert("note: " + RecordChecksums::note_on_missing_crcs(without_crcs_));
    const bool unchecked = !before.empty() && parameters_ == 0;
    if (unchecked) problems_ = before;  // do not report a missing or damaged file again
    const auto print = [&](const Texts& texts) {
      print_lines(out, {texts.begin(), texts.end()}, kMostProblems, options_);
    };
    print(notes_);
    print(problems_);
    if (unchecked) out << "the parameters can only be checked once this is repaired\n";
    print(unknown_);
    out << path_.string() << ": " << files_.size() << " files, " << bytes_of(files_) << " bytes, "
        << parameters_ << " parameters, " << elements_ << " elements of weights and moments: "
        << (problems_.empty() ? "no problem" : std::to_string(problems_.size()) + " problem(s)")
        << (unknown_.empty() ? ""
                             : " in the parts that this program knows; the rest is not checked")
        << '\n';
    return !problems_.empty()  ? kExitDiffers
           : !unknown_.empty() ? kExitNotUnderstood
                               : kExitAllWell;
  }

 private:
  using Texts = std::set<std::string>;

  void add(const std::string& text) { add(problems_, text); }
  void add(Texts& texts, const std::string& text) {
    const std::lock_guard lock(mutex_);
    texts.insert(text);
  }

  template <typename Fn>
  void attempt(Fn&& fn) {
    try {
      fn();
    } catch (const Unreadable& error) {
      add(unknown_, error.what());
    } catch (const std::exception& error) {
      add(error.what());
    }
  }

  void list_files() {
    files_ = files_under(path_);
    for (const fs::path& file : files_) {
      if (const auto name = parse_checkpoint_file_name(file.filename().string())) {
        // The name of a layer file may lack the tp rank.
        const bool layer = name->kind == FileKind::kLayer;
        ranks_[layer ? layer_states_file(name->layer, name->tp_rank) : file.filename().string()] = {
            *name, {}};
      }
    }
  }

  // Checks every byte of a file against its CRC.
  void check_file(const fs::path& file) {
    const ZipReader zip = open_torch_file(file);
    if (!zip.has_crcs()) add(without_crcs_, file.string());
    for (const auto& record : zip.records()) {
      attempt([&] { zip.check(record); });
      read_->add(record.size);
    }
    const auto rank = ranks_.find(file.filename().string());
    if (rank == ranks_.end()) return;
    Value& content = rank->second.content = read_torch_file(zip);
    if (!content.is_dict()) return;
    // There may be thousands of files. Weights, and shapes that dp rank 0 repeats, are not kept.
    if (content.find(keys::kModule)) content.set(keys::kModule, true);
    if (rank->second.name.dp_rank > 0) content.erase(keys::kParamShapes);
  }

  // Checks every item of the files of torch.distributed.checkpoint against its CRC.
  void check_items() {
    const DcpFolder folder = read_dcp(path_);
    std::set<fs::path> used;
    for (const DcpItem& item : folder.items) used.insert(item.file->path());
    for (const fs::path& file : files_)
      if (file.extension() == kDcpSuffix && !used.contains(file))
        add(file.string() + ": " + std::string(kDcpMetadata) + " names no item of it");
    parallel_for(folder.items.size(), options_.workers, [&](size_t i) {
      attempt([&] {
        const ZipReader zip = folder.items[i].open();
        if (!zip.has_crcs()) add(without_crcs_, zip.file()->path().string());
        for (const auto& record : zip.records()) attempt([&] { zip.check(record); });
        read_->add(folder.items[i].length);
      });
    });
  }

  // Checks the files against the manifest, if the save wrote one.
  void check_manifest() {
    const auto manifest = read_manifest(path_);
    if (!manifest) return;
    for (const std::string& damage :
         {size_damage(path_, manifest->files),
          checksum_damage(path_, manifest->files, [&](uint64_t bytes) { read_->add(bytes); })})
      if (!damage.empty()) add(damage);
    const IsOurs known =
        kind_ == Kind::kUniversal ? universal_entries(path_) : entries_of(*manifest);
    for (const fs::path& file : files_)
      if (is_of_checkpoint(file) && !known(file.lexically_relative(path_), /*is_folder=*/false))
        add(file.string() + ": is not in " + std::string(kManifestFile) +
            ", so that nobody knows whether it is as it was written");
  }

  bool is_of_checkpoint(const fs::path& file) const {
    return kind_ == Kind::kUniversal ? is_torch_file(file)
                                     : ranks_.contains(file.filename().string());
  }

  void expect(const std::string& file) {
    if (!ranks_.contains(file) && !renamed_.contains(file)) add(file + ": is missing");
  }

  // Returns the number of ranks that the metadata records, else by the highest rank in a name.
  int64_t size_of(const Value& metadata, std::string_view key,
                  int CheckpointFileName::*rank) const {
    if (const Value recorded = metadata.find(key)) return recorded.as_int();
    int64_t size = 1;
    for (const auto& [file, held] : ranks_) size = std::max<int64_t>(size, held.name.*rank + 1);
    return size;
  }

  bool has(FileKind kind) const {
    return std::ranges::any_of(ranks_,
                               [kind](const auto& rank) { return rank.second.name.kind == kind; });
  }

  // Checks that the mesh's files are all there. Any readable model-states file gives the mesh.
  void check_file_set() {
    const auto first = std::ranges::find_if(ranks_, [](const auto& rank) {
      return rank.second.content && rank.second.name.is_model_states();
    });
    if (first == ranks_.end())
      return unknown_.empty() ? add("no model-states file can be read") : void();
    const Value& metadata = first->second.content;
    const int64_t dp_size = size_of(metadata, keys::kDpWorldSize, &CheckpointFileName::dp_rank),
                  mp_size = size_of(metadata, keys::kMpWorldSize, &CheckpointFileName::mp_rank),
                  tp_size = degrees_of(metadata).tp;
    if (dp_size < 1 || mp_size < 1 || dp_size > kMostRanks || mp_size > kMostRanks / dp_size ||
        tp_size < 1 || mp_size % tp_size != 0)
      return add(first->first + ": a mesh of dp " + std::to_string(dp_size) + " and " +
                 std::to_string(mp_size) + " model-parallel ranks, tp " + std::to_string(tp_size));
    // Our universal folders have the metadata under the names of both ZeRO 3 and lower stages.
    const bool ordinary = kind_ == Kind::kOrdinary,
               zero3 = has(FileKind::kZero3ModelStates) && !has(FileKind::kModelStates);
    const ExpertSpread experts = ExpertSpread::from(metadata);
    if (ordinary) expect_experts(metadata, experts, static_cast<int>(tp_size), zero3);
    if (mp_size == 1)  // DeepSpeed before 0.19.8: Ulysses' files, by their sequence-parallel ranks
      for (const auto& [file, rank] : ranks_)
        renamed_.insert(rank.name.kind == FileKind::kOptimStates
                            ? optim_states_file(rank.name.dp_rank, 0, rank.name.bf16)
                            : zero3_model_states_file(rank.name.dp_rank, 0));
    const bool optimizers = ordinary && !metadata.find(keys::kWeightsOnly) &&
                            !has(FileKind::kExpertOptim) &&
                            (has(FileKind::kOptimStates) || !metadata.find(keys::kOptimizer));
    for (int mp = 0; mp < mp_size; ++mp) {
      if (!zero3) expect(model_states_file(mp));
      for (int dp = 0; dp < dp_size; ++dp) {
        if (zero3) expect(zero3_model_states_file(dp, mp));
        if (optimizers) expect(optim_states_file(dp, mp, is_bf16()));
      }
    }
    if (!ordinary || zero3 || metadata.find(keys::kModule)) return;
    for (const int layer : pipeline_layers())
      for (int tp = 0; tp < tp_size; ++tp) expect(layer_states_file(layer, tp));
  }

  // Expects ZeRO 0's optimizer of each ep rank, and below ZeRO 3 a file for each expert.
  void expect_experts(const Value& metadata, const ExpertSpread& experts, int tp_size, bool zero3) {
    if (zero3) return;
    const int cuts = experts.whole ? 1 : tp_size;
    for (size_t layer = 0; layer < experts.layers.size(); ++layer)
      for (int64_t e = 0; e < experts.layers[layer].experts; ++e)
        for (int tp = 0; tp < cuts; ++tp)
          expect(expert_states_file(static_cast<int>(layer), e, tp));
    if (experts.layers.empty() || has(FileKind::kOptimStates) || metadata.find(keys::kWeightsOnly))
      return;
    const int64_t mp_size = size_of(metadata, keys::kMpWorldSize, &CheckpointFileName::mp_rank);
    for (int ep = 0; ep < experts.ep_size; ++ep)
      for (int mp = 0; mp < mp_size; ++mp)
        if (!experts.whole) expect(expert_optim_states_file(ep, mp));
  }

  bool is_bf16() const {
    return std::ranges::any_of(ranks_, [](const auto& rank) { return rank.second.name.bf16; });
  }

  std::set<int> pipeline_layers() const {
    std::set<int> layers;
    for (const auto& [file, rank] : ranks_)
      if (rank.name.kind == FileKind::kLayer) layers.insert(rank.name.layer);
    for (const std::string& name : listed_parameters())
      if (std::isdigit(static_cast<unsigned char>(name[0]))) layers.insert(std::atoi(name.c_str()));
    return layers;
  }

  // Returns the parameters of all stages, from the model-states files.
  std::set<std::string> listed_parameters() const {
    std::set<std::string> names;
    for (const auto& [file, rank] : ranks_) {
      const Value groups = rank.content ? rank.content.find(keys::kParamShapes) : Value();
      if (!groups) continue;
      for (const Value& group : groups.items())
        for (const auto& [name, shape] : group.entries()) names.insert(name.as_string());
    }
    return names;
  }

  // Checks that the counters are the same on all ranks.
  void check_counters() {
    SameSave same;
    for (const auto& [file, rank] : ranks_)
      if (rank.content && rank.name.kind != FileKind::kLayer)
        for (const std::string& line : same.differences(file, rank.content)) add(line);
    if (kind_ != Kind::kOrdinary) return;
    for (auto& [file, rank] : ranks_) rank.content = {};  // which the opener reads again
  }

  void check_ordinary() {
    const auto ranks =
        std::make_shared<const ShardedCheckpoint>(open_sharded_checkpoint(path_, options_.workers));
    if (!ranks->states_refused.empty())
      notes_.insert("note: the optimizer's states are not understood, so not checked: " +
                    printable(ranks->states_refused, 1000));
    const Merger merger(ranks, merge_info(*ranks));
    const ModelWeights weights(*ranks);
    std::vector<const std::string*> names;
    for (const auto& [name, shards] : ranks->parameters) names.push_back(&name);
    parallel_for(names.size(), options_.workers, [&](size_t i) {
      attempt([&] { check_parameter(*ranks, merger, weights, *names[i]); });
      for (const ParameterShard& shard : ranks->parameters.at(*names[i]))
        for (const auto& [state, held] : shard.states)
          read_->add(static_cast<uint64_t>(numel(shard.shape_of(held))) * element_size(held.dtype));
    });
    attempt([&] { check_contents(*ranks, /*sample=*/true, nullptr); });
    parameters_ = static_cast<int64_t>(names.size());
  }

  // Checks one parameter by itself, so that a broken one does not hide the others. Every element
  // must exist exactly once (merged() throws otherwise), and all copies must be equal.
  void check_parameter(const ShardedCheckpoint& source, const Merger& merger,
                       const ModelWeights& weights, const std::string& name) {
    const SavedParameter parameter = merger.merged(name);
    elements_ += parameter.elements();
    std::map<int, const ParameterShard*> firsts;  // by tp rank; only 0 if replicated
    for (const ParameterShard& shard : *parameter.shards) {
      const auto [first, is_new] =
          firsts.emplace(parameter.is_replicated() ? 0 : shard.tp_rank, &shard);
      for (const auto& [state, elements] : first->second->states)
        if (!is_new) check_copy(source, name, *first->second, shard, state);
      if (const TensorRecord* weight = weights.of(name, shard)) check_rounded(name, shard, *weight);
    }
  }

  // Checks that the model's weights are a shard's masters, in the precision that the model has.
  void check_rounded(const std::string& name, const ParameterShard& shard,
                     const TensorRecord& weight) {
    const Unrounded found = compare_masters(shard_tensor(shard, kFp32State), weight);
    if (found.count > 0)
      add(printable(name) + ": weights of pp " + std::to_string(shard.pp_rank) + ", tp " +
          std::to_string(shard.tp_rank) + " (" + file_of(weight.bytes).filename().string() +
          "): " + found.text());
  }

  void check_copy(const ShardedCheckpoint& source, const std::string& name,
                  const ParameterShard& first, const ParameterShard& copy,
                  const std::string& state) {
    const auto rank = [](const ParameterShard& shard) {
      return "pp " + std::to_string(shard.pp_rank) + ", tp " + std::to_string(shard.tp_rank);
    };
    const std::string what = printable(name) + ": " + printable(state) + " of " + rank(copy);
    int64_t held = 0;
    const auto found = copy.states.find(state);
    const ShardState own = found == copy.states.end() ? ShardState() : found->second;
    for (const ShardFragment& fragment : own.fragments) held += fragment.numel;
    if (copy.shape != first.shape || own.dtype != first.states.at(state).dtype ||
        held != numel(copy.shape_of(own)))
      return add(what + " has " + std::to_string(held) + " elements of " + to_string(copy.shape) +
                 ", expected all of " + to_string(first.shape) + ", as on " + rank(first));
    const TensorDifference difference =
        compare_tensors(shard_tensor(first, state), shard_tensor(copy, state));
    if (difference.count == 0) return;
    if (copy.pp_rank != first.pp_rank && never_used(copy)) {
      // Megatron's last stage has position embeddings, because they belong to the tied layer.
      return add(notes_, "note: " + name + ": the copy of " + rank(copy) +
                             " is another, but has never been used (exp_avg_sq is all zero)");
    }
    int dp_rank = 0;
    for (const ShardFragment& fragment : own.fragments)
      if (fragment.begin <= difference.where) dp_rank = fragment.dp_rank;
    const int mp_rank = copy.pp_rank * source.tp_size + copy.tp_rank;
    std::string file = optim_states_file(dp_rank, mp_rank, is_bf16());
    if (!ranks_.contains(file)) file = model_states_file(mp_rank);  // ZeRO 0
    add(what + " (" + file + ") " + difference.text() + " from the one of " + rank(first));
  }

  // Checks a universal folder or weights.
  void check_whole() {
    const Checkpoint whole = open_checkpoint(path_, options_.workers);
    for (const std::string& name : listed_parameters())
      if (!whole.contains(name)) add((path_ / kZeroFolder / name).string() + ": is missing");
    std::pair<std::string, Value> first;                 // the first with a step
    std::map<std::set<std::string>, std::string> kinds;  // sets of states, each with a parameter
    for (const std::string& name : whole.names()) {
      attempt([&] {
        const SavedParameter parameter = whole.parameter(name);
        ++parameters_;
        std::set<std::string> states;
        for (const auto& [state, tensor] : parameter.states) {
          elements_ += tensor.numel();
          states.insert(state);
        }
        kinds.emplace(states, name);
        if (!first.second) first = {name, parameter.step};
        if (parameter.step && parameter.step.as_double() != first.second.as_double())
          add(name + ": step is " + std::to_string(parameter.step.as_int()) + ", but " +
              std::to_string(first.second.as_int()) + " of " + first.first);
      });
    }
    for (const auto& [few, name] : kinds)
      for (const auto& [more, other] : kinds) check_states(few, name, more, other);
  }

  // Reports a parameter that has only some of another's states. Groups may have different
  // optimizers, but none lacks part of another's. A parameter with weights alone is frozen.
  void check_states(const std::set<std::string>& few, const std::string& name,
                    const std::set<std::string>& more, const std::string& other) {
    if (few.size() < 2 || few == more || !std::ranges::includes(more, few)) return;
    std::string lacking;
    for (const std::string& state : more)
      if (!few.contains(state)) lacking += " " + printable(state_file(state));
    add(printable(name) + ": lacks" + lacking + ", which " + printable(other) +
        " has beside the same states");
  }

  struct RankFile {
    CheckpointFileName name;
    Value content;  // None when it cannot be read
  };
  fs::path path_;
  Kind kind_;
  CkptOptions options_;
  std::optional<ProgressCounter> read_;
  std::vector<fs::path> files_;
  std::map<std::string, RankFile> ranks_;  // files with a rank in their name, by name
  Texts renamed_;                          // names that files would have without sequence ranks
  int64_t parameters_ = 0;
  std::atomic<int64_t> elements_{0};
  std::mutex mutex_;
  Texts problems_, notes_;        // notes: findings that look wrong but are not
  Texts unknown_, without_crcs_;  // parts that may be whole but cannot be read; files
};

}  // namespace

int verify_checkpoint(const std::filesystem::path& path, const CkptOptions& options,
                      std::ostream& out) {
  std::vector<std::string> notes;
  const fs::path tag = resolve_tag(path, "", &notes);
  for (const std::string& note : notes) out << "note: " << printable_message(note) << '\n';
  return Verifier(tag, options).run(out);
}

}  // namespace anymesh
