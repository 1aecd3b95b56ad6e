#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "framework/format/layout/names.h"

namespace anymesh {

// The files of a tag folder, by the ranks in their names. Nothing is read, unless a function says
// so.

// By (dp, mp) or (layer, tp), as numbers: "mp_rank_100" sorts before "mp_rank_11".
using Ranks = std::pair<int, int>;
using RankFiles = std::map<Ranks, std::filesystem::path>;

// Throws UserError if there is no such folder, and DamagedFile if it has no model-states file, or
// two files of one rank.
std::map<CheckpointFileName::Kind, RankFiles> find_files(const std::filesystem::path& folder);
// Returns the files of single experts, each with its mp rank.
std::vector<std::pair<int, std::filesystem::path>> find_expert_files(
    const std::filesystem::path& folder);

// Returns the highest rank plus one.
int64_t next_rank(const RankFiles& files, int Ranks::*rank);
// Returns the number of dp ranks. Only ZeRO 3's model-states files name one.
int64_t dp_size_of(const RankFiles& models);
std::vector<std::filesystem::path> paths_of(const RankFiles& files);

// Throws DamagedFile, with names, unless every (dp, mp) below these sizes is there.
void check_complete(const std::filesystem::path& folder, const RankFiles& files, int64_t dp_size,
                    int64_t mp_size);
// Throws DamagedFile if there are files of ranks that the last save under this tag did not have.
// `saved` is the number of ranks in that save, according to rank 0's file.
void refuse_left_over(const std::filesystem::path& folder, const RankFiles& files, int Ranks::*rank,
                      int64_t saved, const std::string& said_by);

// Before 0.19.8, DeepSpeed named the files of Ulysses' ranks by their sequence-parallel ranks:
// zero_pp_rank_3_mp_rank_01. Renumbers them if mp_world_size, in `model_file`, is 1.
void drop_sequence_ranks(RankFiles& files, const std::filesystem::path& model_file);

}  // namespace anymesh
