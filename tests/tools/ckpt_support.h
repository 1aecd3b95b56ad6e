#pragma once

#include <sstream>

#include "framework/format/whole.h"
#include "tests/support/checkpoints.h"
#include "tools/ckpt/ckpt.h"

namespace anymesh {

// The exit code and output of a `ckpt` command.
struct Outcome {
  int code = 0;
  std::string text;
  bool says(const std::string& part) const { return text.find(part) != std::string::npos; }
};

inline Outcome verify(const fs::path& path) {
  std::ostringstream out;
  const int code = verify_checkpoint(path, {.workers = 2}, out);
  return {code, out.str()};
}

inline Outcome diff(const fs::path& a, const fs::path& b, bool all = false) {
  std::ostringstream out;
  const int code = diff_checkpoints(a, b, {.workers = 2, .all = all}, out);
  return {code, out.str()};
}

inline Outcome inspect(const fs::path& path, bool all = false) {
  std::ostringstream out;
  const int code = inspect_checkpoint(path, {.workers = 2, .all = all}, out);
  return {code, out.str()};
}

inline void expect_well(const Outcome& outcome, const std::string& part = "") {
  EXPECT_EQ(outcome.code, 0) << outcome.text;
  EXPECT_TRUE(outcome.says(part)) << outcome.text;
}

inline void expect_problem(const Outcome& outcome, const std::string& part) {
  EXPECT_EQ(outcome.code, 1);
  EXPECT_TRUE(outcome.says(part)) << outcome.text;
}

class Ckpt : public TempFolder {
 protected:
  // Exports the masters of a checkpoint as zero_to_fp32 does.
  fs::path exported(const std::string& name) {
    const Checkpoint whole = open_checkpoint(tag_of(name), 2);
    Value weights = Value::ordered_dict();
    for (const std::string& parameter : whole.names())
      weights.set(parameter, whole.parameter(parameter).weight());
    write_torch_file(folder_ / "pytorch_model.bin", weights);
    return folder_ / "pytorch_model.bin";
  }
};

// Returns a checkpoint of DeepSpeed of a rarer kind.
inline fs::path rare_case(const std::string& name) {
  return fs::path(ANYMESH_TEST_DATA) / "deepspeed" / "cases" / name / "checkpoint";
}

inline const std::string kMesh = "z1-bf16-tp2pp2dp1";

}  // namespace anymesh
