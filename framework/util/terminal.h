#pragma once

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

namespace anymesh {

// Whether a stream is a terminal, on which lines can be rewritten and coloured. TERM=dumb says that
// it cannot.
//
// mpirun gives its ranks a terminal even if it does not write to one itself. Under Open MPI stdout
// therefore needs ANYMESH_TERMINAL in the environment; tools/mpirun.sh sets it if its own stdout is
// a terminal.
inline bool on_terminal(std::FILE* stream) {
  const char* term = std::getenv("TERM");
  if (term && std::string_view(term) == "dumb") return false;
  if (stream == stdout && std::getenv("ANYMESH_TERMINAL")) return true;
  return !std::getenv("OMPI_COMM_WORLD_SIZE") && isatty(fileno(stream));
}

enum class Colour { kRed = 31, kGreen = 32, kYellow = 33 };

// Returns the text in a colour, for a terminal. Elsewhere, and where NO_COLOR is set, returns it as
// it is.
inline std::string coloured(Colour colour, const std::string& text, std::FILE* stream) {
  const char* no_colour = std::getenv("NO_COLOR");
  if ((no_colour && *no_colour) || !on_terminal(stream)) return text;
  return "\033[" + std::to_string(static_cast<int>(colour)) + "m" + text + "\033[0m";
}

// The same for a line of a run's output: yellow for a warning, green for the end.
inline std::string coloured_line(const std::string& line, std::FILE* stream) {
  if (line.starts_with("WARNING")) return coloured(Colour::kYellow, line, stream);
  return line.starts_with("done: ") ? coloured(Colour::kGreen, line, stream) : line;
}

}  // namespace anymesh
