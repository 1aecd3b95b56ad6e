#pragma once

#include <optional>
#include <string>

#include "framework/format/folder/output_folder.h"
#include "framework/format/layout/names.h"

namespace anymesh {

// Which entries are ours in the folders that we replace or remove. A manifest lists them. In
// folders that lack a manifest, such as DeepSpeed's, they are known by the format's file names.

// Accepts the files of the folder's manifest; nothing without one.
IsOurs listed_entries(const std::filesystem::path& folder);
inline constexpr FolderKind kTag{"a tag with a manifest of ours", listed_entries};
inline constexpr FolderKind kDcp{"a folder of torch.distributed.checkpoint with a manifest of ours",
                                 listed_entries};

// Accepts also a universal folder of DeepSpeed: torch files of the right names, beside a zero/.
IsOurs universal_entries(const std::filesystem::path& folder);
// Returns the second name of a metadata file: DeepSpeed looks for other names under ZeRO 3 than
// under ZeRO 0 to 2.
std::optional<std::string> second_name(const std::string& file);
inline constexpr FolderKind kUniversal{"a universal checkpoint", universal_entries,
                                       kLatestUniversalFile, second_name};
inline constexpr std::string_view kPlanFile = "tmp/plan.json";  // written there on request

// Accepts what a save made in a tag's folder, also in DeepSpeed's and under a damaged manifest,
// provided that the folder has a file with one of the format's names.
//
//   const std::string foreign = first_foreign_entry(tag, tag_entries(tag));
//   if (!foreign.empty()) ...                        // the tag is neither replaced nor removed
IsOurs tag_entries(const std::filesystem::path& folder);
// The same for a folder TAG.tmp that an interrupted save or removal may have left. Other builders
// also leave folders with such names: without a file of the format, only marks are ours.
IsOurs leftover_entries(const std::filesystem::path& folder);
// Whether a folder `name`.tmp is a mark, by which ranks see whether they share a folder.
bool is_mark(const std::string& name);

}  // namespace anymesh
