#include "framework/comm/agreement.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <sstream>

#include "framework/util/plain_words.h"
#include "framework/util/printable.h"

namespace anymesh {

std::vector<std::string> gather_strings(Communicator& comm, const std::string& mine) {
  torch::Tensor sizes = torch::empty({comm.size()}, torch::kLong);
  comm.all_gather(sizes, torch::full({1}, static_cast<int64_t>(mine.size()), torch::kLong));
  const int64_t longest = sizes.max().item<int64_t>();
  torch::Tensor padded = torch::zeros({longest}, torch::kByte);
  torch::Tensor all = torch::empty({comm.size(), longest}, torch::kByte);
  std::ranges::copy(mine, static_cast<char*>(padded.data_ptr()));
  comm.all_gather(all, padded);
  std::vector<std::string> texts;
  for (int r = 0; r < comm.size(); ++r) {
    texts.emplace_back(static_cast<const char*>(all[r].const_data_ptr()),
                       static_cast<size_t>(sizes[r].item<int64_t>()));
  }
  return texts;
}

void send_string(Communicator& comm, const std::string& text, int to) {
  const auto size = static_cast<int64_t>(text.size());
  torch::Tensor bytes = torch::empty({size}, torch::kByte);
  std::ranges::copy(text, static_cast<char*>(bytes.data_ptr()));
  comm.exchange(torch::full({1}, size, torch::kLong), to, {}, to);
  if (size > 0) comm.exchange(bytes, to, {}, to);
}

std::string receive_string(Communicator& comm, int from) {
  torch::Tensor size = torch::empty({1}, torch::kLong);
  comm.exchange({}, from, size, from);
  torch::Tensor bytes = torch::empty({size.item<int64_t>()}, torch::kByte);
  if (bytes.numel() > 0) comm.exchange({}, from, bytes, from);
  return {static_cast<const char*>(bytes.const_data_ptr()), bytes.nbytes()};
}

std::vector<std::string> gather_lines(Communicator& comm, const std::vector<std::string>& mine) {
  std::string text;
  for (const std::string& line : mine) text += line + "\n";
  std::vector<std::string> lines;
  for (const std::string& rank : gather_strings(comm, text)) {
    std::istringstream in(rank);
    for (std::string line; std::getline(in, line);) lines.push_back(line);
  }
  return lines;
}

int64_t max_over(Communicator& comm, int64_t mine) {
  torch::Tensor greatest = torch::full({1}, mine, torch::kLong);
  comm.all_reduce(greatest, ReduceOp::Max);
  return greatest.item<int64_t>();
}

void throw_together(Communicator& comm, const std::string& mine) {
  const std::vector<std::string> texts = gather_strings(comm, mine);
  const auto first =
      std::find_if(texts.begin(), texts.end(), [](const std::string& t) { return !t.empty(); });
  if (first == texts.end()) return;
  const bool everywhere = std::count(texts.begin(), texts.end(), *first) == comm.size();
  throw CollectiveError(
      (everywhere ? "" : "[rank " + std::to_string(first - texts.begin()) + "] ") + *first);
}

void all_or_none(Communicator& comm, const std::function<void()>& work) {
  std::string error;
  try {
    work();
  } catch (const c10::Error& e) {
    error = plain_words(e.what_without_backtrace());
  } catch (const std::exception& e) {
    error = printable_message(e);
  }
  throw_together(comm, error);
}

}  // namespace anymesh
