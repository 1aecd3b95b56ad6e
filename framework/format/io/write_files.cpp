#include "framework/format/io/write_files.h"

#include <algorithm>
#include <atomic>
#include <deque>

#include "framework/format/io/block_writer.h"

namespace anymesh {
namespace {

struct Job {
  explicit Job(const StreamedFile& file) : blocks(file), remaining(blocks.count()) {}
  BlockWriter blocks;
  std::atomic<size_t> remaining;
};

}  // namespace

void FileLayout::add(std::string_view text) {
  if (pieces.empty() || pieces.back().source) pieces.push_back({size, "", nullptr});
  pieces.back().text += text;
  size += text.size();
}

void FileLayout::add(BytesPtr source) {
  size += source->size();
  pieces.push_back({size - source->size(), "", std::move(source)});
}

WriteResult write_files(const std::vector<StreamedFile>& files, int threads,
                        const ProgressCallback& progress) {
  std::deque<Job> jobs;
  std::vector<size_t> first;  // index of each file's first block among all blocks
  size_t blocks = 0;
  WriteResult result;
  for (const StreamedFile& file : files) {
    result.bytes += file.layout.size;
    first.push_back(blocks);
    blocks += jobs.emplace_back(file).blocks.count();
  }
  ProgressCounter counter(result.bytes, progress);
  for_blocks(blocks, threads, [&](size_t i, std::span<std::byte> buffer) {
    const size_t of = static_cast<size_t>(std::ranges::upper_bound(first, i) - first.begin()) - 1;
    const size_t block = i - first[of];
    Job& job = jobs[of];
    job.blocks.write(block, buffer);
    counter.add(job.blocks.end_of(block) - job.blocks.begin_of(block));
    if (--job.remaining == 0) job.blocks.finish(job.blocks.extents());
  });
  for (const Job& job : jobs) {
    result.kept += job.blocks.kept();
    result.crcs.push_back(job.blocks.crc());
  }
  return result;
}

}  // namespace anymesh
