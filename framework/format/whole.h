#pragma once

// The programs that write a checkpoint's uncut tensors.
#include "framework/format/checkpoint.h"           // reads uncut tensors from any checkpoint
#include "framework/format/whole/convert.h"        // ds_to_universal
#include "framework/format/whole/fp32_export.h"    // zero_to_fp32
#include "framework/format/whole/weights_files.h"  // writes weights as Hugging Face's are
