// Finds the flag that a user meant.
#pragma once

#include <algorithm>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

namespace anymesh {

// The fewest insertions, deletions and substitutions that turn `a` into `b`.
inline size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0]++;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t substituted = diagonal + (a[i] != b[j]);
      diagonal = row[j + 1];
      row[j + 1] = std::min({substituted, diagonal + 1, row[j] + 1});
    }
  }
  return row.back();
}

// Returns the entry of `known` that `name` abbreviates (argparse allows that) or is nearest to;
// empty if none is near.
inline std::string nearest_name(const std::string& name, const std::vector<std::string>& known) {
  constexpr size_t kLongestName = 64;  // the distance takes quadratic time
  if (name.size() > kLongestName) return "";
  size_t nearest = (name.size() < 4 ? 1 : std::max<size_t>(2, name.size() / 4)) + 1;
  std::string best;
  for (const std::string& candidate : known) {
    const bool abbreviated = name.size() >= 4 && candidate.starts_with(name);
    const size_t distance = abbreviated ? 1 : edit_distance(name, candidate);
    if (distance >= nearest) continue;
    nearest = distance;
    best = candidate;
  }
  return best;
}

}  // namespace anymesh
