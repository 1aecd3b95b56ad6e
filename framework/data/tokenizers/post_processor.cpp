#include "framework/data/tokenizers/post_processor.h"

#include "framework/data/tokenizers/vocabulary.h"

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

}  // namespace

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

}  // namespace anymesh
