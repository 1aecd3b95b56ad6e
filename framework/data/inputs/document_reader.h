// Cuts inputs (input_list.h) into documents, and hands them out in numbered batches, for workers to
// share.
//
//   DocumentReader reader({"a.txt", "b.txt.gz"}, DocumentUnit::kParagraph);
//   for (DocumentReader::Batch batch; reader.read(batch);) ...
//
//   kFile        the whole file
//   kParagraph   lines up to a blank one
//   kLine        each line that is not blank, as in JSON lines
//
// A document ends with its file. A '\n' belongs to a paragraph and not to a line. Nothing else is
// added or dropped, so a '\r' before it stays in either. JSON lines take it for white space.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "framework/data/inputs/byte_stream.h"

namespace anymesh {

enum class DocumentUnit { kFile, kParagraph, kLine };

struct Document {
  std::string text;
  size_t input = 0;  // its number, from 0
  int64_t line = 0;  // the line of the input where the document ends, from 1; for messages
  bool too_long =
      false;  // a line of kLongestLine bytes or more, of which only the beginning is here
};

class DocumentReader {
 public:
  // The bound of a document that is a line: a file without a '\n' would fill the memory.
  static constexpr size_t kLongestLine = size_t{1} << 27;

  struct Batch {
    int64_t number = 0;
    int64_t bytes = 0;       // of the text
    int64_t file_bytes = 0;  // of the files on disk
    std::vector<Document> documents;
  };

  // Opens the inputs one after the other, as they are read.
  DocumentReader(std::vector<std::string> inputs, DocumentUnit unit);

  // Reads the next documents: a megabyte or one document, whichever is more. Returns false at the
  // end. If it throws, the batch has its number.
  bool read(Batch& batch);

 private:
  bool next(Document& document);
  bool next_of_input(Document& document);
  bool next_line(std::string& line);
  void next_input();

  std::vector<std::string> inputs_;
  DocumentUnit unit_;
  std::unique_ptr<ByteStream> stream_;  // of inputs_[input_]; none before it is opened
  std::string_view rest_;               // of the stream's last piece
  size_t input_ = 0;
  int64_t line_ = 0;         // of this input
  bool line_ended_ = false;  // with a '\n'
  bool too_long_ = false;

  int64_t batches_ = 0;
  int64_t bytes_ = 0;
  int64_t file_bytes_ = 0;  // of the inputs before this one
  int64_t file_bytes_counted_ = 0;
};

}  // namespace anymesh
