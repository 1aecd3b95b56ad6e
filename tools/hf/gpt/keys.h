#pragma once

#include <array>
#include <climits>
#include <filesystem>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "framework/format/io.h"
#include "framework/util/errors.h"
#include "framework/util/json.h"

namespace anymesh {

using Json = nlohmann::ordered_json;

// The keys of a config.json. A family names each once, and it is read or written:
//
//   keys.bind("rms_norm_eps", gpt.layernorm_epsilon);   the field is read from it, or written to it
//   keys.always("use_sliding_window", false);           the only value: others are refused
//   keys.require("use_bias", true);                     as above, but left to the class
//   keys.ignore({"layerdrop"});                         read without an effect, never written
//   keys.put("pad_token_id", nullptr);                  written alone
//   keys.set(gpt.add_qkv_bias, true);                   no key: all models of the family have it
//
// An absent key has the default of its family's config class, a null one the argument `otherwise`.
// Remembers which keys were read.
class Keys {
 public:
  Keys() : writes_(true) {}  // writes object()
  explicit Keys(const std::filesystem::path& file) : file_(file.string()) {
    object_ = Json::parse(bounded(read_text(file), file), nullptr, /*allow_exceptions=*/false);
    if (!object_.is_object()) throw DamagedFile(file_ + ": is no JSON object");
  }
  Keys(std::string file, Json object) : file_(std::move(file)), object_(std::move(object)) {}

  // Sets the defaults. A key under another name, which transformers prefers, gets its usual one.
  using OtherNames = std::array<std::pair<const char*, const char*>, 4>;
  void assume(const OtherNames& others, const Json& defaults) {
    for (const auto& [other, usual] : others) {
      if (!other) break;
      used_.insert(other);
      if (const Json value = object_.value(other, Json()); !value.is_null()) object_[usual] = value;
    }
    defaults_ = defaults;
  }

  bool writes() const { return writes_; }
  const Json& object() const { return object_; }

  void bind(const char* name, int& field, const Json& otherwise = {}) {
    if (writes_) return put(name, field);
    field = integer(name, otherwise);
  }
  void bind(const char* name, double& field) {
    if (writes_) return put(name, field);
    field = number(name);
  }
  void bind(const char* name, bool& field) {
    if (writes_) return put(name, field);
    field = is_true(name);
  }
  void bind_not(const char* name, bool& field) {
    bool opposite = !field;
    bind(name, opposite);
    field = !opposite;
  }
  void always(const char* name, const Json& value) {
    put(name, value);
    one_of(name, {value});
  }
  void require(const char* name, const Json& value) const {
    if (!writes_) one_of(name, {value});
  }
  void ignore(std::initializer_list<const char*> names) const {
    used_.insert(names.begin(), names.end());
  }
  void put(const char* name, const Json& value) {
    if (writes_) object_[name] = value;
  }
  void drop(const char* name) {
    if (writes_) object_.erase(name);
  }

  template <class T>
  void set(T& field, const std::type_identity_t<T>& value) const {
    if (!writes_) field = value;
  }

  Json find(const char* name) const {
    used_.insert(name);
    return object_.contains(name) ? object_[name] : defaults_.value(name, Json());
  }
  Json at(const char* name, const Json& otherwise = {}) const {
    Json value = find(name);
    if (value.is_null()) value = otherwise;
    if (value.is_null()) fail(name, value, "a value");
    return value;
  }
  int integer(const char* name, const Json& otherwise = {}) const {
    const Json value = at(name, otherwise);
    const bool fits = value.is_number_integer() && value >= 1 && value <= INT_MAX;
    if (!fits) fail(name, value, "an integer from 1 to 2147483647");
    return value.get<int>();
  }
  double number(const char* name) const {
    const Json value = at(name, defaults_.value(name, Json()));
    if (!value.is_number()) fail(name, value, "a number");
    return value.get<double>();
  }
  bool is_true(const char* name) const {
    const Json value = at(name, defaults_.value(name, Json()));
    if (!value.is_boolean()) fail(name, value, "true or false");
    return value.get<bool>();
  }
  // Returns a value that our model can have. A key without a default has the first of `values`.
  Json one_of(const char* name, const std::vector<Json>& values) const {
    const Json value = at(name, defaults_.value(name, values[0]));
    std::string expected;
    for (const Json& known : values) {
      if (value == known) return value;
      expected += (expected.empty() ? "" : " or ") + known.dump();
    }
    fail(name, value, expected + ", since pretrain_gpt's model has no other");
  }
  const std::string& file() const { return file_; }
  bool contains(const char* name) const { return object_.contains(name); }
  // Returns the keys that nobody read and that are not null, false or empty, and those of inner
  // objects that were reported.
  std::vector<std::string> unused() const {
    std::vector<std::string> names = unused_of(object_, used_);
    names.insert(names.end(), inner_unused_.begin(), inner_unused_.end());
    return names;
  }
  // Reports those of the object under the key `name`.
  void report_unused(const std::string& name, const Json& object,
                     const std::set<std::string>& used) const {
    for (const std::string& key : unused_of(object, used)) inner_unused_.insert(name + "." + key);
  }
  // Says in the report of an import how a value was taken.
  void note(const std::string& text) const { notes_.push_back(text); }
  const std::vector<std::string>& notes() const { return notes_; }
  [[noreturn]] void fail(const std::string& key, const Json& found,
                         const std::string& expected) const {
    throw DamagedFile(file_ + ": '" + key + "' is " +
                      (found.is_null() ? "missing" : found.dump().substr(0, 100)) + "; expected " +
                      expected);
  }

 private:
  static std::vector<std::string> unused_of(const Json& object, const std::set<std::string>& used) {
    std::vector<std::string> names;
    for (const auto& [name, value] : object.items())
      if (!used.contains(name) && !value.is_null() && value != false && value != Json::object() &&
          value != Json::array())
        names.push_back(name);
    return names;
  }

  bool writes_ = false;
  std::string file_;
  Json object_ = Json::object(), defaults_ = Json::object();
  mutable std::set<std::string> used_, inner_unused_;
  mutable std::vector<std::string> notes_;
};

}  // namespace anymesh
