#pragma once

#include "framework/pipeline/text_model.h"
#include "tools/generate/setup.h"

namespace anymesh {

// Writes a text behind each of setup.prompts to stdout, the first as it comes, and the times to
// stderr. All texts are read up to the same position. There, a text whose prompt goes on takes its
// next token, and the others draw theirs. So nothing is padded, and each text is the same as if it
// were written alone.
void write_texts(TextModel& model, const TextSetup& setup, const GenerateFlags& flags);

}  // namespace anymesh
