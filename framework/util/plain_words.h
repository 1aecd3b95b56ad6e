#pragma once

#include <sys/resource.h>

#include <cstdint>
#include <exception>
#include <new>
#include <string>
#include <string_view>
#include <system_error>

#include "framework/util/format.h"
#include "framework/util/memory_sizes.h"
#include "framework/util/parse_number.h"
#include "framework/util/printable.h"

namespace anymesh {

// Says what libraries' errors mean. A library does not know which limit or file its caller met.

// "not enough memory for 80.00 GB: 23.50 GB are free, and `ulimit -v` allows this process 4.00 GB".
// 0 bytes: an unknown number.
inline std::string lack_of_memory(int64_t bytes) {
  std::string text = "not enough memory";
  if (bytes > 0) text += " for " + size_text(static_cast<double>(bytes));
  text += ": " + size_text(static_cast<double>(free_memory())) + " are free";
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
    text += ", and `ulimit -v` allows this process " +
            size_text(static_cast<double>(limit.rlim_cur)) + " of addresses";
  return text;
}

// Returns the text of a library's error without the library's own marks.
inline std::string plain_words(std::string_view text) {
  constexpr std::string_view kJson = "[json.exception.",
                             kFile = "filesystem error: ", kAsked = "you tried to allocate ";
  if (text.starts_with(kJson)) return std::string(text.substr(text.find("] ") + 2));
  if (text.starts_with(kFile)) return std::string(text.substr(kFile.size()));
  if (const size_t at = text.find(kAsked); at != std::string_view::npos) {
    const std::string_view number = text.substr(at + kAsked.size());
    return lack_of_memory(parse_number<int64_t>(number.substr(0, number.find(' '))).value_or(0));
  }
  return std::string(text);
}

// The text of an error, for the terminal.
inline std::string printable_message(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error)) return lack_of_memory(0);
  const auto* system = dynamic_cast<const std::system_error*>(&error);
  if (system && system->code() == std::errc::resource_unavailable_try_again)
    return "cannot start a thread: " + system->code().message() +
           " (`ulimit -u` and a container's limit of processes, or " + lack_of_memory(0) + ")";
  return printable_message(plain_words(error.what()));
}

}  // namespace anymesh
