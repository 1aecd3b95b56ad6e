#include "framework/checkpoint/tags_to_try.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>
#include <optional>
#include <sstream>

#include "framework/checkpoint/format/file_io.h"
#include "framework/checkpoint/format/manifest.h"
#include "framework/checkpoint/format/names.h"

namespace anymesh {
namespace {

namespace fs = std::filesystem;

bool is_folder_in(const fs::path& load_dir, const std::string& tag) {
  return !tag.empty() && tag.find('/') == std::string::npos && fs::is_directory(load_dir / tag);
}

std::string what_is_in(const fs::path& folder) {
  return ". It holds: " + (fs::is_directory(folder) ? list_folder(folder) : "nothing");
}

// What the pointer file says, and if that is of no use, why.
std::pair<std::string, std::string> named_by(const fs::path& pointer) {
  try {
    const std::string tag = read_tag(pointer);
    if (is_folder_in(pointer.parent_path(), tag)) return {tag, ""};
    return {"", pointer.string() + " names '" + tag + "', which is not a folder beside it"};
  } catch (const std::runtime_error& error) {
    return {"", error.what()};
  }
}

// The host that wrote the file which the text is about, unless it says so.
std::string host_in(const fs::path& folder, const std::string& text) {
  try {
    const auto manifest = read_manifest(folder);
    if (!manifest || text.find("(written on ") != std::string::npos) return "";
    for (const Manifest::File& file : manifest->files)
      if (text.find(file.name) != std::string::npos) return " (written on " + file.host + ")";
  } catch (const std::exception&) {  // the manifest is what is damaged
  }
  return "";
}

std::string listed(const std::vector<size_t>& numbers) {
  std::string text;
  for (const size_t number : numbers) text += std::to_string(number) + " ";
  return text;
}

std::vector<size_t> numbers_in(const std::string& text) {
  std::istringstream in(text);
  return {std::istream_iterator<size_t>(in), {}};
}

// The files that no rank sees as they were written. Rank 0 looks at all, the others at what it misses.
std::vector<size_t> bad_by_size(Communicator& world, const fs::path& folder,
                                const Manifest& manifest) {
  std::vector<size_t> bad(world.rank() == 0 ? manifest.files.size() : 0);
  std::iota(bad.begin(), bad.end(), 0);
  const auto is_good = [&](size_t i) { return size_damage(folder, manifest, {i}).empty(); };
  std::erase_if(bad, is_good);
  bad = numbers_in(gather_strings(world, listed(bad))[0]);
  if (bad.empty()) return bad;
  std::erase_if(bad, is_good);
  std::vector<size_t> everywhere = bad;
  for (const std::string& rank : gather_strings(world, listed(bad))) {
    const std::vector<size_t> others = numbers_in(rank);
    std::erase_if(everywhere, [&](size_t i) {
      return std::find(others.begin(), others.end(), i) == others.end();
    });
  }
  return everywhere;
}

// The files that a rank reads: each is read by one rank, of the host that wrote it if there is one.
std::vector<size_t> share_of(int rank, const std::vector<std::string>& hosts,
                             const Manifest& manifest) {
  std::map<std::string, std::vector<int>> ranks_on;
  std::vector<int> all(hosts.size());
  std::iota(all.begin(), all.end(), 0);
  for (const int r : all) ranks_on[hosts[static_cast<size_t>(r)]].push_back(r);
  std::vector<size_t> mine;
  for (size_t i = 0; i < manifest.files.size(); ++i) {
    const auto there = ranks_on.find(manifest.files[i].host);
    const std::vector<int>& readers = there == ranks_on.end() ? all : there->second;
    if (readers[i % readers.size()] == rank) mine.push_back(i);
  }
  return mine;
}

}  // namespace

TagsToTry tags_to_try(const fs::path& load_dir, const LoadOptions& options) {
  if (!options.tag.empty()) {
    if (is_folder_in(load_dir, options.tag)) return {{options.tag}, {}};
    throw std::runtime_error(load_dir.string() + " has no tag '" + options.tag + "'" +
                             what_is_in(load_dir));
  }
  const bool universal = options.universal;
  const fs::path pointer = load_dir / (universal ? kLatestUniversalFile : kLatestFile);
  const bool has_pointer = fs::exists(pointer);
  const auto [named, trouble] =
      has_pointer ? named_by(pointer) : std::pair<std::string, std::string>();
  if (!trouble.empty() && !options.fallback)
    throw std::runtime_error(trouble + what_is_in(load_dir));
  TagsToTry found;
  if (!named.empty()) found.tags.push_back(named);
  if (!options.fallback) return found;
  // Universal folders get their name last, ordinary tags of ours have a manifest. Of DeepSpeed's
  // nothing says whether they are complete: they count where there is a pointer.
  const std::string_view suffix = universal ? kUniversalSuffix : "";
  const auto last = step_of_tag(named, suffix);
  for (const auto& [step, tag] : tags_by_step(load_dir, suffix)) {
    const bool committed = universal || has_pointer || fs::exists(load_dir / tag / kManifestFile);
    if (committed && tag != named && (!last || step < *last)) found.tags.push_back(tag);
  }
  if (named.empty() && has_pointer && found.tags.empty())
    throw std::runtime_error(trouble + what_is_in(load_dir));
  if (named.empty() && !found.tags.empty()) {
    found.warnings.push_back(
        "WARNING: " + (has_pointer ? trouble : pointer.string() + " is missing") +
        ". Loading the newest checkpoint that was committed there, " + found.tags[0] +
        " (--no-fallback would stop here)");
  }
  return found;
}

void check_files(Communicator& world, const fs::path& folder, bool checksums) {
  std::optional<Manifest> manifest;
  read_together(world, folder, [&] { manifest = read_manifest(folder); });
  if (max_over(world, manifest ? 0 : 1) > 0) return;
  const std::vector<size_t> bad = bad_by_size(world, folder, *manifest);
  if (!bad.empty())
    throw DamagedCheckpoint(gather_strings(world, size_damage(folder, *manifest, bad))[0]);
  if (!checksums) return;
  const std::vector<std::string> hosts = gather_strings(world, host_name());
  read_together(world, folder, [&] {
    const std::string damage =
        checksum_damage(folder, *manifest, share_of(world.rank(), hosts, *manifest));
    if (!damage.empty()) throw std::runtime_error(damage);
  });
}

void read_together(Communicator& world, const fs::path& folder, const std::function<void()>& work) {
  std::string damage;
  all_or_none(world, [&] {
    try {
      work();
    } catch (const std::runtime_error& error) {
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
