#include "framework/data/inputs/document_reader.h"

#include <utility>

#include "framework/data/inputs/input_list.h"

namespace anymesh {
namespace {

bool is_blank(const std::string& text) {
  return text.find_first_not_of(" \t\r\v\f") == std::string::npos;
}

}  // namespace

DocumentReader::DocumentReader(std::vector<std::string> inputs, DocumentUnit unit)
    : inputs_(std::move(inputs)), unit_(unit) {}

bool DocumentReader::read(Batch& batch) {
  constexpr int64_t kBatchBytes = 1 << 20;
  const int64_t before = bytes_;
  batch = {batches_++, 0, 0, {}};
  for (Document document; bytes_ - before < kBatchBytes && next(document);)
    batch.documents.push_back(std::move(document));
  batch.bytes = bytes_ - before;
  const int64_t read = file_bytes_ + (stream_ ? stream_->file_bytes() : 0);
  batch.file_bytes = read - std::exchange(file_bytes_counted_, read);
  return !batch.documents.empty();
}

bool DocumentReader::next(Document& document) {
  for (; input_ < inputs_.size(); next_input()) {
    if (!stream_) stream_ = open_text(inputs_[input_]);
    if (next_of_input(document)) return true;
  }
  return false;
}

void DocumentReader::next_input() {
  file_bytes_ += stream_->file_bytes();
  stream_.reset();
  ++input_;
  line_ = 0;
}

bool DocumentReader::next_of_input(Document& document) {
  document.text.clear();
  if (unit_ == DocumentUnit::kFile) {
    for (std::string_view piece; !(piece = stream_->next()).empty();) document.text += piece;
    bytes_ += static_cast<int64_t>(document.text.size());
  }
  for (std::string line; unit_ != DocumentUnit::kFile && next_line(line);) {
    const bool blank = !too_long_ && is_blank(line);
    if (blank && document.text.empty()) continue;
    if (blank) break;
    if (unit_ == DocumentUnit::kLine) {
      document.text = std::move(line);
      break;
    }
    document.text += line;
    if (line_ended_) document.text += '\n';
  }
  document.input = input_;
  document.line = line_;
  document.too_long = too_long_;
  return !document.text.empty();
}

// Returns false at the end of the input.
bool DocumentReader::next_line(std::string& line) {
  line.clear();
  too_long_ = false;
  for (line_ended_ = false; !line_ended_;) {
    if (rest_.empty() && (rest_ = stream_->next()).empty()) break;
    const size_t end = rest_.find('\n');
    line_ended_ = end != std::string_view::npos;
    const std::string_view part = rest_.substr(0, end);
    if (unit_ == DocumentUnit::kLine && line.size() + part.size() >= kLongestLine) {
      too_long_ = true;
      line = line.substr(0, 64);
    } else if (!too_long_) {
      line += part;
    }
    rest_.remove_prefix(line_ended_ ? end + 1 : rest_.size());
  }
  if (line.empty() && !line_ended_) return false;
  bytes_ += static_cast<int64_t>(line.size()) + (line_ended_ ? 1 : 0);
  ++line_;
  return true;
}

}  // namespace anymesh
