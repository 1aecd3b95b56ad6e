#!/usr/bin/env bash
# Measures how long folders of torch.distributed.checkpoint take to convert, beside `cp` and beside torch's own dcp_to_torch_save: a
# model of 1.3B parameters in fp32 (5.3 GB) that torch wrote. All take turns; medians of RUNS (3), and the largest peak of memory.
# Times end when the files are on the disk. Needs the venv of tests/interop/install.sh, and 22 GB.
#
#   benchmarks/dialects.sh [FOLDER_OF_EXECUTABLES]            default: build/release/bin
#   LAYERS=2 benchmarks/dialects.sh                           a smaller model
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
venv=${ANYMESH_INTEROP_VENV:-$repository/build/interop-venv} runs=${RUNS:-3}
python() { LD_LIBRARY_PATH="$venv/gpu-stand-ins" "$venv/bin/python" "$@"; }

python - "${LAYERS:-24}" <<'PYTHON' 2>save.log || { tail -5 save.log; exit 1; }
import sys, torch, torch.distributed.checkpoint as dcp
h, layers = 2048, int(sys.argv[1])
shapes = {"embed.weight": (50304, h), "norm.weight": (h,)}
for i in range(layers):
    shapes |= {f"layers.{i}.{name}": shape for name, shape in {
        "qkv.weight": (3 * h, h), "qkv.bias": (3 * h,), "out.weight": (h, h), "out.bias": (h,), "up.weight": (4 * h, h), "up.bias": (4 * h,),
        "down.weight": (h, 4 * h), "down.bias": (h,), "norm1.weight": (h,), "norm2.weight": (h,)}.items()}
dcp.save({"model": {name: torch.randn(shape) for name, shape in shapes.items()}}, checkpoint_id="source")
PYTHON
warm source

timed() { # NAME COMMAND...: the seconds until its files are on the disk, and its peak of memory in MiB
  rm -rf out
  python - "$@" 2>"$1.err" >>"$1.runs" <<'PYTHON' || { tail -5 "$1.err"; exit 1; }
import os, resource, subprocess, sys, time
started = time.perf_counter()
subprocess.run(sys.argv[2:], check=True, stdout=sys.stderr)
subprocess.run(["sync", "-f", "."], check=True)
print(time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024)
PYTHON
}
for ((i = 0; i < runs; ++i)); do
  timed cp cp -r source out
  timed dcp "$bin/ckpt" convert source out --to dcp
  timed fp32 "$bin/zero_to_fp32" source out
  timed torch env "LD_LIBRARY_PATH=$venv/gpu-stand-ins" "$venv/bin/python" -m torch.distributed.checkpoint.format_utils dcp_to_torch source out
done
first=$(cut -d' ' -f1 cp.runs | median)
echo "| | s, median of $runs | of cp's | largest peak, MiB |"
echo "|---|---|---|---|"
for which in cp dcp fp32 torch; do
  seconds=$(cut -d' ' -f1 $which.runs | median)
  echo "| $which | $seconds | $(awk "BEGIN {printf \"%.2f\", $seconds / $first}") | $(cut -d' ' -f2 $which.runs | sort -g | tail -1) |"
done
