#pragma once

#include <climits>
#include <filesystem>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "framework/format/io.h"
#include "framework/util/errors.h"

namespace anymesh {

using Json = nlohmann::ordered_json;

// The keys of a config.json. A key may have a second name. An absent or null key has its default.
// Remembers which keys were read.
class Keys {
 public:
  explicit Keys(const std::filesystem::path& file) : file_(file.string()) {
    const auto shallow = [this](int depth, Json::parse_event_t, const Json&) {
      if (depth > 16) throw DamagedFile(file_ + ": is nested deeper than 16 levels");
      return true;
    };
    object_ = Json::parse(read_text(file), shallow, /*allow_exceptions=*/false);
    if (!object_.is_object()) throw DamagedFile(file_ + ": is no JSON object");
  }
  Keys(std::string file, Json object) : file_(std::move(file)), object_(std::move(object)) {}

  using Names = std::initializer_list<const char*>;

  Json find(Names names) const {
    used_.insert(names.begin(), names.end());
    for (const char* name : names) {
      const auto found = object_.find(name);
      if (found != object_.end() && !found->is_null()) return *found;
    }
    return {};
  }
  Json at(Names names, const Json& otherwise = {}) const {
    Json value = find(names);
    if (value.is_null()) value = otherwise;
    if (value.is_null()) fail(*names.begin(), value, "a value");
    return value;
  }
  int integer(Names names, const Json& otherwise = {}) const {
    const Json value = at(names, otherwise);
    const bool fits = value.is_number_integer() && value >= 1 && value <= INT_MAX;
    if (!fits) fail(*names.begin(), value, "an integer from 1 to 2147483647");
    return value.get<int>();
  }
  double number(const char* name, double otherwise) const {
    const Json value = at({name}, otherwise);
    if (!value.is_number()) fail(name, value, "a number");
    return value.get<double>();
  }
  bool is_true(const char* name, bool otherwise) const {
    const Json value = at({name}, otherwise);
    if (!value.is_boolean()) fail(name, value, "true or false");
    return value.get<bool>();
  }
  // Returns a value that our model can have. An absent key has the first of `values`.
  Json one_of(const char* name, const std::vector<Json>& values) const {
    const Json value = at({name}, values[0]);
    std::string expected;
    for (const Json& known : values) {
      if (value == known) return value;
      expected += (expected.empty() ? "" : " or ") + known.dump();
    }
    fail(name, value, expected + ", since pretrain_gpt's model has no other");
  }
  const std::string& file() const { return file_; }
  bool contains(const char* name) const { return object_.contains(name); }
  // Returns the keys that nobody read and that are not null, false or empty.
  std::vector<std::string> unused() const {
    std::vector<std::string> names;
    for (const auto& [name, value] : object_.items())
      if (!used_.contains(name) && !value.is_null() && value != false && value != Json::object() &&
          value != Json::array())
        names.push_back(name);
    return names;
  }
  [[noreturn]] void fail(const std::string& key, const Json& found,
                         const std::string& expected) const {
    throw DamagedFile(file_ + ": '" + key + "' is " +
                      (found.is_null() ? "missing" : found.dump().substr(0, 100)) + "; expected " +
                      expected);
  }

 private:
  std::string file_;
  Json object_;
  mutable std::set<std::string> used_;
};

}  // namespace anymesh
