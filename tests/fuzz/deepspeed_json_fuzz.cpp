// Fuzzes a configuration of DeepSpeed, read into the flags and the fields behind them.
#include "framework/config/deepspeed_json.h"
#include "framework/config/parse.h"
#include "tests/fuzz/target.h"

namespace anymesh {

void fuzz(std::span<const std::byte> input) {
  const ScratchFile file(".json", input);
  Config config;
  FlagTable flags("fuzz", "");
  add_flags(flags, config);
  try {
    read_deepspeed_json(file.path(), flags, config);
  } catch (const UserError& error) {
    require_name(error, file.path());
  }
}

}  // namespace anymesh
