// Cuts a text file into documents and hands them out in numbered batches, for workers to share.
//
//   DocumentReader reader("corpus.txt", DocumentUnit::kParagraph);
//   for (DocumentReader::Batch batch; reader.read(batch);) ...
//
//   kFile        the whole file
//   kParagraph   lines up to a blank one
//   kLine        each line that is not blank, as in JSON lines
//
// A '\n' belongs to a paragraph and not to a line. Nothing else is added or dropped, so a '\r'
// before it stays in either. JSON lines take it for white space.
#pragma once

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "framework/util/errors.h"
#include "framework/util/input_file.h"

namespace anymesh {

enum class DocumentUnit { kFile, kParagraph, kLine };

struct Document {
  std::string text;
  int64_t line = 0;  // the line where it ends, from 1; for messages
};

class DocumentReader {
 public:
  struct Batch {
    int64_t number = 0;
    int64_t bytes = 0;  // of the input
    std::vector<Document> documents;
  };

  DocumentReader(const std::string& path, DocumentUnit unit) : path_(path), unit_(unit), in_(path) {
    check_text();
  }

  // Reads the next documents: a megabyte or one document, whichever is more. Returns false at the
  // end.
  bool read(Batch& batch) {
    constexpr int64_t kBatchBytes = 1 << 20;
    const int64_t before = bytes_;
    batch = {batches_++, 0, {}};
    for (Document document; bytes_ - before < kBatchBytes && next(document);)
      batch.documents.push_back(std::move(document));
    if (in_.bad()) throw_error(path_, ": cannot read: ", std::strerror(errno));
    batch.bytes = bytes_ - before;
    return !batch.documents.empty();
  }

 private:
  // Throws if the first bytes are not UTF-8 text, whatever the file's name is.
  void check_text() {
    using namespace std::string_view_literals;
    constexpr std::string_view kUtf16 =
        "is UTF-16, expected UTF-8; convert it first: iconv -f UTF-16 -t UTF-8";
    constexpr std::pair<std::string_view, std::string_view> kKinds[] = {
        {"\x1f\x8b"sv, "is compressed by gzip; unpack it first: gunzip -k"},
        {"\x28\xb5\x2f\xfd"sv, "is compressed by zstd; unpack it first: unzstd"},
        {"\xfd\x37zXZ"sv, "is compressed by xz; unpack it first: unxz -k"},
        {"BZh"sv, "is compressed by bzip2; unpack it first: bunzip2 -k"},
        {"PK\x03\x04"sv, "is a zip archive; unpack it first: unzip"},
        {"\xff\xfe"sv, kUtf16},
        {"\xfe\xff"sv, kUtf16}};
    char start[8];
    in_.read(start, sizeof start);
    const std::string_view text(start, static_cast<size_t>(in_.gcount()));
    for (const auto& [begin, what] : kKinds)
      if (text.starts_with(begin)) throw_error(path_, ": ", what, " ", path_);
    in_.clear();
    in_.seekg(0);
  }

  static bool blank(const std::string& text) {
    return text.find_first_not_of(" \t\r\v\f") == std::string::npos;
  }

  bool next_line(std::string& line) {
    if (!std::getline(in_, line)) return false;
    bytes_ += static_cast<int64_t>(line.size()) + (in_.eof() ? 0 : 1);
    ++line_;
    return true;
  }

  bool next(Document& document) {
    document.text.clear();
    std::string line;
    if (unit_ == DocumentUnit::kFile) {
      document.text.assign(std::istreambuf_iterator<char>(in_), {});
      bytes_ += static_cast<int64_t>(document.text.size());
    } else {
      while (next_line(line)) {
        const bool empty = document.text.empty();
        if (blank(line) && empty) continue;
        if (blank(line)) break;
        document.text += line;
        if (unit_ == DocumentUnit::kLine) break;
        if (!in_.eof()) document.text += '\n';
      }
    }
    document.line = line_;
    return !document.text.empty();
  }

  std::string path_;
  DocumentUnit unit_;
  InputFile in_;
  int64_t batches_ = 0;
  int64_t bytes_ = 0;
  int64_t line_ = 0;
};

}  // namespace anymesh
