#include "framework/checkpoint/load/find_loadable_tags.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>

#include "framework/format/folder.h"
#include "framework/format/io.h"
#include "framework/format/layout.h"
#include "framework/format/torch_file.h"
#include "framework/util/errors.h"
#include "framework/util/printable.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;
using Files = std::vector<Manifest::File>;

// Throws if `tag` names no folder in `load_dir`. The message names `source`, which gave the tag.
std::string tag_in(const fs::path& load_dir, const std::string& tag, const std::string& source) {
  return folder_of_tag(load_dir, tag, source).lexically_relative(load_dir);
}

// Returns the tag that the pointer file names, or an empty tag and why the file is unusable.
std::pair<std::string, std::string> named_by(const fs::path& load_dir, std::string_view pointer) {
  const fs::path path = load_dir / pointer;
  if (!fs::exists(path)) {
    const std::string there = fs::is_directory(load_dir) ? list_folder(load_dir) : "nothing";
    return {"", path.string() + " is missing; there are: " + there};
  }
  try {
    std::string tag = read_tag(path);
    if (is_tag_name(tag)) tag = whole_folder(load_dir / tag).lexically_relative(load_dir);
    return {tag_in(load_dir, tag, path.string()), ""};
  } catch (const UserError& error) {  // no such folder
    return {"", error.what()};
  } catch (const DamagedFile& error) {
    return {"", error.what()};
  }
}

// Returns " (written on HOST)" for the file that the text mentions, unless the text has it already.
std::string host_in(const fs::path& folder, const std::string& text) {
  try {
    const auto manifest = read_manifest(folder);
    if (!manifest || text.find("(written on ") != std::string::npos) return "";
    for (const Manifest::File& file : manifest->files)
      if (text.find(file.name) != std::string::npos) return " (written on " + file.host + ")";
  } catch (const std::exception&) {  // the manifest itself is damaged
  }
  return "";
}

// Returns the files that no rank sees with their recorded size. Rank 0 looks at all files, the
// others only at those that it misses.
Files bad_by_size(Communicator& world, const fs::path& folder, const Files& files) {
  // Clears the mark '1' of each file that this rank sees with its recorded size.
  const auto look = [&](std::string marks) {
    for (size_t i = 0; i < marks.size(); ++i)
      if (marks[i] == '1' && size_damage(folder, {files[i]}).empty()) marks[i] = '0';
    return marks;
  };
  std::string marks(world.rank() == 0 ? files.size() : 0, '1');
  marks = gather_strings(world, look(marks))[0];
  for (const std::string& rank : gather_strings(world, look(marks)))
    for (size_t i = 0; i < marks.size(); ++i) marks[i] = std::min(marks[i], rank[i]);
  Files bad;
  for (size_t i = 0; i < marks.size(); ++i)
    if (marks[i] == '1') bad.push_back(files[i]);
  return bad;
}

// Returns the manifest that the ranks see, if any does. Without a shared file system each node has
// a copy, unless it lost its disk. Throws if the copies are of different saves: the nodes would
// have parts of both.
std::optional<Manifest> common_manifest(Communicator& world, const fs::path& folder) {
  std::optional<Manifest> mine;
  read_together(world, folder, [&] { mine = read_manifest(folder); });
  const std::string json = mine ? mine->to_json() : "",
                    hash = mine ? std::to_string(std::hash<std::string>()(json)) : "";
  const auto hosts = gather_strings(world, host_name()), hashes = gather_strings(world, hash);
  const auto has = [](const std::string& hash) { return !hash.empty(); };
  const auto first = std::find_if(hashes.begin(), hashes.end(), has);
  if (first == hashes.end()) return {};
  const auto owner = static_cast<size_t>(first - hashes.begin());
  for (size_t rank = 0; rank < hashes.size(); ++rank) {
    if (!has(hashes[rank]) || hashes[rank] == *first) continue;
    throw DamagedCheckpoint((folder / kManifestFile).string() + " of " + hosts[rank] + " (rank " +
                            std::to_string(rank) + ") is of another save than the one on " +
                            hosts[owner] + " (rank " + std::to_string(owner) + ")");
  }
  if (std::all_of(hashes.begin(), hashes.end(), has)) return mine;
  const bool owns = static_cast<size_t>(world.rank()) == owner;
  return Manifest::from_json(gather_strings(world, owns ? json : "")[owner],
                             (folder / kManifestFile).string());
}

// Returns the files that `rank` reads. One rank reads each file: one on the host that wrote it, if
// there is any.
Files share_of(int rank, const std::vector<std::string>& hosts, const Files& files) {
  std::map<std::string, std::vector<int>> ranks_on;
  std::vector<int> all(hosts.size());
  std::iota(all.begin(), all.end(), 0);
  for (const int r : all) ranks_on[hosts[static_cast<size_t>(r)]].push_back(r);
  Files mine;
  for (size_t i = 0; i < files.size(); ++i) {
    const auto there = ranks_on.find(files[i].host);
    const std::vector<int>& readers = there == ranks_on.end() ? all : there->second;
    if (readers[i % readers.size()] == rank) mine.push_back(files[i]);
  }
  return mine;
}

}  // namespace

LoadableTags find_loadable_tags(const fs::path& load_dir, const LoadOptions& options) {
  if (!options.tag.empty()) return {{tag_in(load_dir, options.tag, "--load-tag")}, {}};
  const bool universal = options.universal;
  const std::string_view pointer = universal ? kLatestUniversalFile : kLatestFile;
  const bool has_pointer = fs::exists(load_dir / pointer);
  const auto [named, trouble] = named_by(load_dir, pointer);
  LoadableTags found;
  if (!named.empty()) found.tags.push_back(named);
  if (!named.empty() && !options.fallback) return found;
  // A universal folder gets its name only when it is complete. Our ordinary tags are complete if
  // they have a manifest. DeepSpeed's do not show it: they count if there is a pointer file.
  const std::string_view suffix = universal ? kUniversalSuffix : "";
  const auto last = step_of_tag(named, suffix);
  for (const auto& [step, tag] : tags_by_step(load_dir, suffix)) {
    const bool committed = universal || has_pointer || fs::exists(load_dir / tag / kManifestFile);
    if (committed && tag != named && (!last || step < *last)) found.tags.push_back(tag);
  }
  if (!named.empty() || (found.tags.empty() && !has_pointer)) return found;
  if (found.tags.empty()) throw UserError(trouble);
  if (!options.fallback)
    throw UserError(trouble + ". --no-fallback takes no other tag; --load-tag names one");
  found.warnings.push_back("WARNING: " + trouble +
                           ". Loading the newest checkpoint that was committed there, " +
                           found.tags[0] + " (--no-fallback would stop here)");
  return found;
}

bool is_tag_folder(const fs::path& folder) {
  return fs::exists(folder / model_states_file(0)) ||
         fs::exists(folder / zero3_model_states_file(0, 0));
}

Value saved_metadata(const fs::path& load_dir, LoadOptions options) {
  try {
    LoadableTags found = find_loadable_tags(load_dir, options);
    options.universal = false;  // a missing universal one is made from an ordinary one
    if (found.tags.empty()) found = find_loadable_tags(load_dir, options);
    for (const std::string& tag : found.tags) {
      const fs::path folder = load_dir / tag, zero3 = folder / zero3_model_states_file(0, 0);
      if (const fs::path file = fs::exists(zero3) ? zero3 : folder / model_states_file(0);
          fs::exists(file))
        return read_torch_file(file);
    }
  } catch (const std::exception&) {
  }
  return {};
}

int64_t saved_vocabulary(const Value& metadata) try {
  const Value info = metadata ? metadata.find(keys::kUniversalInfo) : Value();
  return info ? info.find(keys::kOriginalVocabSize).value_or(0).as_int() : 0;
} catch (const DamagedFile&) {
  return 0;
}

fs::path existing(const fs::path& file) {
  if (fs::exists(file)) return file;
  if (!fs::is_directory(file.parent_path()))
    throw UserError(file.parent_path().string() + ": no such folder (--load)");
  throw DamagedFile(file.string() +
                    " is missing. The folder holds: " + list_folder(file.parent_path()));
}

bool check_files(Communicator& world, const fs::path& folder, bool checksums) {
  const std::optional<Manifest> manifest = common_manifest(world, folder);
  if (!manifest) return false;
  const Files bad = bad_by_size(world, folder, manifest->files);
  if (!bad.empty()) throw DamagedCheckpoint(gather_strings(world, size_damage(folder, bad))[0]);
  if (!checksums) return true;
  const std::vector<std::string> hosts = gather_strings(world, host_name());
  read_together(world, folder, [&] {
    const std::string damage =
        checksum_damage(folder, share_of(world.rank(), hosts, manifest->files));
    if (!damage.empty()) throw DamagedFile(damage);
  });
  return true;
}

void read_together(Communicator& world, const fs::path& folder, const std::function<void()>& work) {
  std::string damage;
  all_or_none(world, [&] {
    try {
      work();
    } catch (const DamagedFile& error) {
      damage = error.what();
      damage += host_in(folder, damage);
    }
  });
  try {
    throw_together(world, damage);
  } catch (const CollectiveError& error) {
    throw DamagedCheckpoint(error.what());
  }
}

}  // namespace anymesh
