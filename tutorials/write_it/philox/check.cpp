#include "framework/kernels/philox.h"
#include "tutorials/write_it/checks.h"

namespace write_it {
namespace {

std::string hex(uint64_t number, int width) {
  char text[20];
  std::snprintf(text, sizeof(text), "%0*llx", width, static_cast<unsigned long long>(number));
  return text;
}

void block(const anymesh::PhiloxBlock& counter, uint64_t key) {
  const auto words = [](const anymesh::PhiloxBlock& block) {
    std::vector<std::string> all;
    for (const uint32_t word : block) all.push_back(hex(word, 8));
    return all;
  };
  std::string input = "counter";
  for (const std::string& word : words(counter)) input += " " + word;
  answer(input + ", key " + hex(key, 16), "block",
         [&] { return words(anymesh::philox(counter, key)); });
}

}  // namespace

void philox() {
  block({}, 0);
  block({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, 0xffffffffffffffff);
  block({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0x299f31d0a4093822);
  for (uint32_t i = 0; i < 4; ++i) {  // each word of the counter, and each half of the key
    anymesh::PhiloxBlock counter{};
    counter[i] = 1;
    block(counter, 0);
  }
  block({}, 1);
  block({}, uint64_t{1} << 32);
  uint64_t state = 1;
  const auto next = [&] {
    return static_cast<uint32_t>((state = state * 6364136223846793005 + 1) >> 32);
  };
  for (int i = 0; i < 200; ++i) {
    const uint32_t a = next(), b = next(), c = next(), d = next(), low = next(), high = next();
    block({a, b, c, d}, low | uint64_t{high} << 32);
  }
}

}  // namespace write_it
