#pragma once

#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "framework/util/errors.h"
#include "framework/util/input_file.h"
#include "framework/util/json.h"
#include "framework/util/printable.h"

namespace anymesh {

// A value in a JSON file that anyone may have written. Its methods return the value in a type, or
// throw an error with the file and the path in it:
//
//   const JsonFile file("tokenizer.json");
//   file.root().at("model").at("unk_id").integer(0, 7);
//   // tokenizer.json: model.unk_id is "x", expected a whole number from 0 to 7
class JsonNode {
 public:
  using Json = nlohmann::json;
  JsonNode(const Json& json, const std::string& file, std::string path)
      : json_(&json), file_(&file), path_(std::move(path)) {}

  const Json& json() const { return *json_; }
  const std::string& file() const { return *file_; }
  bool is_null() const { return json_->is_null(); }
  bool is_text() const { return json_->is_string(); }
  bool is_list() const { return json_->is_array(); }
  bool is_object() const { return json_->is_object(); }

  [[noreturn]] void fail(const std::string& problem) const {
    throw_error<DamagedFile>(*file_, ": ", path_.empty() ? "the whole" : printable(path_), " ",
                             problem);
  }
  [[noreturn]] void expected(const std::string& what) const {
    const bool large = json_->is_structured() && !json_->empty();
    fail((large ? json_->is_array() ? "is a list" : "is an object" : "is " + text_of(*json_)) +
         ", expected " + what);
  }
  // For a value that is right, but that this program does not support.
  [[noreturn]] void refuse(const std::string& problem) const {
    throw_error(*file_, ": ", printable(path_), " ", problem);
  }

  // Returns a member, which is null where there is none.
  JsonNode at(const std::string& key) const {
    static const Json kNull;
    if (!json_->is_object()) expected("an object");
    const auto found = json_->find(key);
    return {found == json_->end() ? kNull : *found, *file_,
            path_.empty() ? key : path_ + "." + key};
  }
  JsonNode at(size_t index) const {
    return {(*json_)[index], *file_, path_ + "[" + std::to_string(index) + "]"};
  }
  size_t list_size() const {
    if (!json_->is_array()) expected("a list");
    return json_->size();
  }
  std::vector<JsonNode> list() const {
    std::vector<JsonNode> nodes;
    for (size_t i = 0; i < list_size(); ++i) nodes.push_back(at(i));
    return nodes;
  }

  const std::string& text() const {
    if (!json_->is_string()) expected("a text");
    return json_->get_ref<const std::string&>();
  }
  std::string text_or(const std::string& otherwise) const { return is_null() ? otherwise : text(); }
  bool flag_or(bool otherwise) const {
    if (is_null()) return otherwise;
    if (!json_->is_boolean()) expected("true or false");
    return json_->get<bool>();
  }
  int64_t integer(int64_t least, int64_t most) const {
    const bool fits = json_->is_number_unsigned()
                          ? json_->get<uint64_t>() <= static_cast<uint64_t>(most)
                          : json_->is_number_integer();
    if (!fits || json_->get<int64_t>() < least || json_->get<int64_t>() > most)
      expected("a whole number from " + std::to_string(least) + " to " + std::to_string(most));
    return json_->get<int64_t>();
  }
  double number() const {
    if (!json_->is_number()) expected("a number");
    return json_->get<double>();
  }

 private:
  static std::string text_of(const Json& json) {
    return printable(json.dump(-1, ' ', false, Json::error_handler_t::replace));
  }

  const Json* json_;
  const std::string* file_;
  std::string path_;
};

class JsonFile {
 public:
  explicit JsonFile(const std::filesystem::path& file) : JsonFile(file, read_file(file)) {}
  // Takes a text that was read already.
  JsonFile(const std::filesystem::path& file, std::string text) : file_(file.string()) {
    naming_memory(file, [&] {
      json_ = nlohmann::json::parse(bounded(std::move(text), file), nullptr,
                                    /*allow_exceptions=*/false);
    });
    if (json_.is_discarded()) throw_error<DamagedFile>(file_, ": is no JSON");
  }
  JsonNode root() const { return {json_, file_, ""}; }

 private:
  std::string file_;
  nlohmann::json json_;
};

}  // namespace anymesh
