#include <filesystem>
#include <utility>

#include "framework/data/json_line.h"
#include "framework/data/tokenizers/package_settings.h"
#include "framework/data/tokenizers/pipeline_tokenizer.h"
#include "framework/data/tokenizers/post_processor.h"
#include "framework/data/tokenizers/tokenizer.h"
#include "framework/data/tokenizers/tokenizer_files.h"

namespace anymesh {

namespace {

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
      read_added_tokens(root.at("added_tokens"), parts->normalizer.get(), parts->vocabulary);
  parts->decoder = read_decoder(root.at("decoder"));
  parts->around = read_post_processor(root.at("post_processor"));
  read_package_settings(folder, root, *parts);
  return make_pipeline_tokenizer(std::move(parts));
}

}  // namespace anymesh
