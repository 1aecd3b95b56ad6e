#pragma once

#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "framework/comm/communicator.h"

namespace anymesh {

// Returns every rank's text, in rank order.
std::vector<std::string> gather_strings(Communicator& comm, const std::string& mine);

// Sends a text to one rank, which receives it.
void send_string(Communicator& comm, const std::string& text, int to);
std::string receive_string(Communicator& comm, int from);

// Returns every rank's lines, in rank order. REQUIRES: none has a line break.
std::vector<std::string> gather_lines(Communicator& comm, const std::vector<std::string>& mine);

// Returns the greatest of all ranks' numbers.
int64_t max_over(Communicator& comm, int64_t mine);

// An error that all ranks know of, with the same text. One of them reports it, and all can end or
// go on together.
struct CollectiveError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Throws the first non-empty text on all ranks, as "[rank 3] text", or without the rank if all
// ranks have it. Returns if all texts are empty.
void throw_together(Communicator& comm, const std::string& mine);

// Runs `work`, which must not communicate, on every rank. If it throws on any rank, all throw.
void all_or_none(Communicator& comm, const std::function<void()>& work);

}  // namespace anymesh
