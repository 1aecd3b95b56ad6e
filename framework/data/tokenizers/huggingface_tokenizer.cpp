#include <filesystem>
#include <utility>

#include "framework/data/json_line.h"
#include "framework/data/tokenizers/pipeline_tokenizer.h"
#include "framework/data/tokenizers/tokenizer.h"
#include "framework/data/tokenizers/tokenizer_files.h"

namespace anymesh {
namespace {

int32_t read_id(const JsonNode& node) {
  return static_cast<int32_t>(node.integer(0, Vocabulary::kMostIds));
}

AroundText read_template(const JsonNode& node) {
  AroundText around;
  bool behind = false;
  for (const JsonNode& part : node.at("single").list()) {
    const JsonNode special = part.at("SpecialToken");
    if (special.is_null()) {
      if (behind || part.at("Sequence").is_null() || part.at("Sequence").at("id").text() != "A")
        part.expected("a SpecialToken, or the Sequence A once");
      behind = true;
      continue;
    }
    const JsonNode ids = node.at("special_tokens").at(special.at("id").text()).at("ids");
    for (const JsonNode& id : ids.list())
      (behind ? around.behind : around.before).push_back(read_id(id));
  }
  if (!behind) node.at("single").expected("the Sequence A among its parts");
  return around;
}

int32_t read_token_and_id(const JsonNode& node) {
  if (node.list_size() != 2) node.expected("a token and its id");
  return read_id(node.at(size_t{1}));
}

// Reads what the "post_processor" puts around one text.
AroundText read_post_processor(const JsonNode& node) {
  if (node.is_null()) return {};
  const std::string& type = node.at("type").text();
  if (type == "ByteLevel") return {};
  if (type == "TemplateProcessing") return read_template(node);
  if (type == "BertProcessing" || type == "RobertaProcessing")
    return {{read_token_and_id(node.at("cls"))}, {read_token_and_id(node.at("sep"))}};
  if (type == "Sequence") {
    AroundText all;
    for (const JsonNode& part : node.at("processors").list()) {
      const bool added = !all.before.empty() || !all.behind.empty();
      if (added && part.at("type").text() != "ByteLevel")
        part.refuse("comes behind another that adds tokens, which is not supported");
      if (!added) all = read_post_processor(part);
    }
    return all;
  }
  node.at("type").refuse("is " + printable(type) + ", a post-processor that is not supported");
}

// Returns the text of an object's member. Returns none where there is none, or no JSON.
std::string_view member_text(std::string_view object, std::string_view name) try {
  std::string_view found;
  for (const auto& [key, value] : members_of(object))
    if (key == name) found = value;
  return found;
} catch (const UserError&) {
  return {};
}

}  // namespace

std::unique_ptr<Tokenizer> make_huggingface_tokenizer(const std::string& folder_or_file) {
  namespace fs = std::filesystem;
  const fs::path path = folder_or_file;
  const fs::path file = fs::is_directory(path) ? path / "tokenizer.json" : path;
  const std::string text = read_tokenizer_file(file.string(), TokenizerFile::kTokenizerJson);
  std::string_view vocab = member_text(member_text(text, "model"), "vocab");
  std::string rest = text;
  if (vocab.starts_with('{'))
    rest.replace(static_cast<size_t>(vocab.data() - text.data()), vocab.size(), "{}");
  const JsonFile json(file, std::move(rest));
  const JsonNode root = json.root();
  const fs::path folder =
      file.filename() == "tokenizer.json" ? fs::absolute(file).parent_path() : "";

  auto parts = std::make_unique<TokenizerParts>();
  parts->normalizer = read_normalizer(root.at("normalizer"));
  PreTokenizers pre_tokenizers =
      read_pre_tokenizers(root.at("pre_tokenizer"), prefix_space_of_class(folder));
  parts->pre_tokenizers = std::move(pre_tokenizers.steps);
  parts->model = read_token_model(root.at("model"), vocab, pre_tokenizers.bytes, parts->vocabulary);
  parts->added_tokens =
      read_added_tokens(root.at("added_tokens"), parts->normalizer, parts->vocabulary);
  parts->decoder = read_decoder(root.at("decoder"));
  parts->around = read_post_processor(root.at("post_processor"));
  read_package_settings(folder, root, *parts);
  return make_pipeline_tokenizer(std::move(parts));
}

}  // namespace anymesh
