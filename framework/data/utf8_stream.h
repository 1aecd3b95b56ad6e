#pragma once

#include <string>
#include <string_view>

namespace anymesh {

// Joins characters that come in pieces, as a model's tokens have them:
//
//   Utf8Stream stream;
//   std::cout << stream.take("caf\xc3") << stream.take("\xa9") << stream.finish();  // caf, é
//
// Only whole characters come out. A byte that is part of none comes out as U+FFFD.
class Utf8Stream {
 public:
  std::string take(std::string_view bytes);
  std::string finish();  // no byte that is left can become whole

 private:
  std::string pending_;  // the beginning of a character
};

}  // namespace anymesh
