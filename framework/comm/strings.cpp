#include "framework/comm/strings.h"

#include <ATen/Functions.h>

#include <cstring>

namespace anymesh {

std::vector<std::string> gather_strings(Communicator& comm, const std::string& mine) {
  torch::Tensor sizes = torch::empty({comm.size()}, torch::kLong);
  comm.all_gather(sizes, torch::full({1}, static_cast<int64_t>(mine.size()), torch::kLong));
  const int64_t longest = sizes.max().item<int64_t>();
  torch::Tensor padded = torch::zeros({longest}, torch::kByte),
                all = torch::empty({comm.size(), longest}, torch::kByte);
  std::memcpy(padded.data_ptr(), mine.data(), mine.size());
  comm.all_gather(all, padded);
  std::vector<std::string> texts;
  for (int r = 0; r < comm.size(); ++r) {
    texts.emplace_back(static_cast<const char*>(all[r].const_data_ptr()),
                       static_cast<size_t>(sizes[r].item<int64_t>()));
  }
  return texts;
}

}  // namespace anymesh
