#pragma once

// Any checkpoint as whole tensors, and the programs made of that.
#include "framework/format/whole/checkpoint_reader.h"  // reads whole tensors from any checkpoint
#include "framework/format/whole/convert.h"            // ds_to_universal
#include "framework/format/whole/convert_plan.h"       // its plan: which bytes go to which file
#include "framework/format/whole/fp32_export.h"        // zero_to_fp32
#include "framework/format/whole/weights_files.h"      // writes weights as Hugging Face's are
#include "framework/format/whole/weights_reader.h"     // reads such weights
