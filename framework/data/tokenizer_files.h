#pragma once

#include <string>

namespace anymesh {

// The files of tokenizers, told apart by their first bytes, whatever they are called:
//
//   vocab.json, merges.txt      GPT-2's               --vocab-file, --merge-file
//   tokenizer.model             SentencePiece's       --tokenizer-model
//   tokenizer.json, tiktoken's, a .vocab of SentencePiece, a pointer of git-lfs: none of the flags'
enum class TokenizerFile { kVocabulary, kMerges, kSentencePiece };

// All of the file that a flag names. Throws if it cannot be read, and if it is evidently of another
// kind: says of which, and where it belongs.
std::string read_tokenizer_file(const std::string& file, TokenizerFile expected);

// Throws if the tokenizer.json, or without one the tokenizer_config.json, in the folder of a
// vocab.json says that its tokenizer does not split text as GPT-2's: a normalizer, a pre-tokenizer
// other than ByteLevel alone, another BPE. The same two files would then give other tokens here.
void check_splits_as_gpt2(const std::string& vocab_file);

}  // namespace anymesh
