#pragma once

#include <nlohmann/json.hpp>

namespace anymesh {

// For Json::parse of a file that anyone may have written: leaves out what is nested deeper than
// anything in a checkpoint's JSON is. The library writes a value by recursion, into messages too,
// and holds each bracket in some 64 bytes.
template <class Json>
bool shallow(int depth, typename Json::parse_event_t /*event*/, Json& /*value*/) {
  constexpr int kDeepest = 8;
  return depth <= kDeepest;
}

}  // namespace anymesh
