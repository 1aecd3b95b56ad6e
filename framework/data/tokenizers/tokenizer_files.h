#pragma once

#include <string>

namespace anymesh {

// The files of tokenizers, told apart by their first bytes, whatever their names are:
//
//   vocab.json, merges.txt      GPT-2's               --vocab-file, --merge-file
//   tokenizer.model             SentencePiece's       --tokenizer-model
//   tokenizer.json              Hugging Face's        --tokenizer-model
//   "base64 rank" lines, or a JSON list of them: tiktoken's   --tokenizer-model
//   a .vocab of SentencePiece, a pointer of git-lfs: none of the flags'
enum class TokenizerFile { kVocabulary, kMerges, kSentencePiece, kTokenizerJson, kTiktoken };

// Returns the whole file that a flag names. Throws if it cannot be read, or if it is evidently of
// another kind. The message then names the kind and its flag.
std::string read_tokenizer_file(const std::string& file, TokenizerFile expected);

// Throws if a vocab.json belongs to a tokenizer that does not split text as GPT-2's: one with a
// normalizer, a pre-tokenizer other than ByteLevel alone, or another BPE. Reads the tokenizer.json
// in its folder, or without one the tokenizer_config.json. The same two files would then give other
// tokens here.
void check_splits_as_gpt2(const std::string& vocab_file);

}  // namespace anymesh
