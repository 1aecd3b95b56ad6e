#pragma once

#include <string_view>

namespace anymesh {

// DeepSpeed puts a script of this name beside the tags, and its users run it to export weights. Our
// script passes its arguments to DeepSpeed's, and says which checkpoints DeepSpeed's cannot read.
inline constexpr std::string_view kZeroToFp32Script = R"py(#!/usr/bin/env python3
"""The weights of this checkpoint in fp32, in one file:  ./zero_to_fp32.py . OUTPUT_FOLDER [--tag TAG]

Runs DeepSpeed's script of this name with the same arguments (--help lists them). It reads ZeRO 1 to 3
without tensor and pipeline parallelism. Anymesh's program zero_to_fp32 takes the same arguments, reads every stage and
mesh, and needs no Python.
"""
import importlib.util
import pathlib
import runpy
import sys

found = {name: importlib.util.find_spec(name) for name in ("torch", "deepspeed", "huggingface_hub")}
missing = [name for name, spec in found.items() if spec is None]
if missing:
    sys.exit(f"{__doc__}\nMissing here: pip install {' '.join(missing)}")
if __name__ == "__main__":
    theirs = pathlib.Path(found["deepspeed"].origin).parent / "utils" / "zero_to_fp32.py"
    runpy.run_path(str(theirs), run_name="__main__")
else:
    from deepspeed.utils.zero_to_fp32 import *
)py";

}  // namespace anymesh
