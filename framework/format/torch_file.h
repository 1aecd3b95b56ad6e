#pragma once

// Files of torch.save and safetensors, without running what a pickle asks to run.
#include "framework/format/torch_file/pickle.h"            // the object part alone
#include "framework/format/torch_file/record_checksums.h"  // checks tensors as they are read
#include "framework/format/torch_file/safetensors.h"       // the same for safetensors
#include "framework/format/torch_file/torch_file.h"        // reads and writes one file
#include "framework/format/torch_file/value.h"             // numbers, text, dicts, tensors
#include "framework/format/torch_file/zip.h"               // the archive part alone
