#pragma once

// Bytes in files: read at any offset, written in blocks by several threads, given their names only
// when they are on disk. Nothing here knows a checkpoint.
#include "framework/format/io/block_writer.h"  // the same for one file that several ranks share
#include "framework/format/io/byte_source.h"  // bytes to read: a file, a part of one, a computation
#include "framework/format/io/crc32.h"        // zip's checksum, and how parts' checksums combine
#include "framework/format/io/file_io.h"      // write beside, sync, rename; listings for messages
#include "framework/format/io/progress.h"     // bytes done, for a progress line
#include "framework/format/io/write_files.h"  // many files, each byte once, at its final offset
