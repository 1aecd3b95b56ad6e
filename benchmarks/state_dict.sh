#!/usr/bin/env bash
# Measures anymesh.state_dict beside DeepSpeed's get_fp32_state_dict_from_zero_checkpoint, on a GPT-2 of 124M parameters that two
# ranks have saved at ZeRO 3. They take turns, each in a process of its own that has imported torch; medians of RUNS (5). All
# tensors must be equal, bit for bit. Then measures what a read of one tensor reads. Needs the venv of tests/interop/python.sh.
#
#   benchmarks/state_dict.sh [FOLDER_OF_EXECUTABLES]          default: build/release/bin
#   CHECKPOINT=/path benchmarks/state_dict.sh                 another checkpoint of ZeRO 3
#   DP=256 benchmarks/state_dict.sh                           the same for 256 ranks
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
venv=${ANYMESH_INTEROP_VENV:-$repository/build/interop-venv} runs=${RUNS:-5}
checkpoint=${CHECKPOINT:-checkpoint}
[[ ${CHECKPOINT:-} ]] || OMP_NUM_THREADS=1 "$bin/pretrain_gpt" --local-ranks 2 --num-layers 12 --hidden-size 768 --num-attention-heads 12 \
  --seq-length 64 --max-position-embeddings 64 --mock-data --vocab-size 50304 --micro-batch-size 1 --global-batch-size 2 --lr 1e-4 \
  --lr-decay-iters 100 --train-iters 1 --eval-iters 0 --bf16 --zero-stage 3 --save checkpoint >train.log || { tail -5 train.log; exit 1; }
if [[ ${DP:-} ]]; then  # cut for another number of ranks
  "$bin/ds_reshard" --input_folder "$checkpoint" --output_folder "cut/global_step1" --target "dp=$DP" >cut.log 2>&1 || { tail -5 cut.log; exit 1; }
  checkpoint=cut
fi
warm "$checkpoint"

measured() { # anymesh|deepspeed: prints seconds, the peak beyond what was there before, over the tensors' bytes, and a digest
  LD_LIBRARY_PATH="$venv/gpu-stand-ins" DS_ACCELERATOR=cpu "$venv/bin/python" - "$1" "$checkpoint" 2>"$1.err" <<'PYTHON' || { tail -5 "$1.err" >&2; exit 1; }
import contextlib, hashlib, sys, time
import torch
import anymesh, numpy
with contextlib.redirect_stdout(sys.stderr):
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
which, path = sys.argv[1:]
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")  # resets the peak
def kib(key):
    return int(next(line for line in open("/proc/self/status") if line.startswith(key)).split()[1])
before = kib("VmRSS")
started = time.perf_counter()
with contextlib.redirect_stdout(sys.stderr):
    weights = (anymesh.state_dict if which == "anymesh" else get_fp32_state_dict_from_zero_checkpoint)(path)
seconds = time.perf_counter() - started
peak = kib("VmHWM")
held = {tensor.data_ptr(): tensor.numel() * tensor.element_size() for tensor in weights.values()}
digest = hashlib.sha256()
for name in sorted(weights):
    digest.update(name.encode() + weights[name].detach().contiguous().flatten().view(torch.uint8).numpy().tobytes())
print(seconds, (peak - before) * 1024 / sum(held.values()), digest.hexdigest())
PYTHON
}

for ((i = 0; i < runs; ++i)); do
  for which in anymesh deepspeed; do measured $which >>"$which.runs"; done
done
cut -d' ' -f3 ./*.runs | sort -u >digests
(($(wc -l <digests) == 1)) || { echo "the tensors differ"; exit 1; }
echo "| | s, median of $runs | largest peak over the tensors' bytes |"
echo "|---|---|---|"
for which in anymesh deepspeed; do
  echo "| $which | $(cut -d' ' -f1 $which.runs | median) | $(cut -d' ' -f2 $which.runs | sort -g | tail -1) |"
done

"$venv/bin/python" - "$checkpoint" <<'PYTHON'
import sys
import anymesh, numpy
c = anymesh.open(sys.argv[1])
def read():
    return int(open("/proc/self/io").readline().split()[1])
elements = sum(p.nbytes // 4 for p in map(c.__getitem__, c))
for name in sorted(c, key=lambda name: c[name].nbytes)[-3:]:
    before = read()
    c[name].numpy()
    print(f"{name}: {c[name].nbytes} bytes of a checkpoint of {elements / 1e6:.0f}M parameters; read {(read() - before) / c[name].nbytes:.4f} times as many")
PYTHON
