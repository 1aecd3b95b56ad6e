#pragma once

// Outputs that are whole or absent, written by one process at a time, beside files that are not
// ours and stay as they are.
#include "framework/format/folder/folder_record.h"  // our files in a folder that users share
#include "framework/format/folder/kinds.h"          // what is ours in which kind of folder
#include "framework/format/folder/manifest.h"       // a folder's files, sizes and checksums
#include "framework/format/folder/output_file.h"    // a file that a flag names
#include "framework/format/folder/output_folder.h"  // a folder that appears whole or not at all
#include "framework/format/folder/output_lock.h"    // the sole right to write an output
#include "framework/format/folder/own_entries.h"    // which entries of a folder may be removed
