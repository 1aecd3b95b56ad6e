#!/usr/bin/env bash
# Times loads and saves against other programs: a GPT-2 of 124M parameters in fp32, saved at ZeRO 1 on dp 2 and converted. Our
# loads run on many meshes, both ways. PyTorch's Distributed Checkpoint (gloo, FileSystemWriter) has tensors of the same names
# and shapes, three per parameter, cut over their first dimension as FSDP does. DeepSpeed runs its universal load and its save
# at ZeRO 1 on 2 ranks. All take turns in each round. Medians of 5 rounds, sources in the page cache. Needs 12 GB of memory and
# 12 GB of disk.
#
#   ROUNDS=5 [PYTHON=PYTHON] benchmarks/load.sh [FOLDER_OF_EXECUTABLES]          default: build/release/bin
#
# PYTHON has torch and DeepSpeed, like the venv of tests/interop/install.sh; without it the other programs are left out. Seconds
# and bytes are those of the rank with the most. "read" is rchar of /proc/self/io, "held" is its masters and moments. The
# resharding load on the mesh that saved, 1,1,2,1, reads its own files. Our saves and DCP's (sync_files, its default) sync their
# files. DeepSpeed's does not, so it has a second row, with `sync`.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
export DS_ACCELERATOR=cpu
rounds=${ROUNDS:-5} python=${PYTHON:-}
meshes=(1,1,1,1 1,1,2,1 2,1,1,1 1,2,1,1 1,1,2,3 1,1,4,3 2,2,1,1 2,1,2,1)

ours() {  # MESH WORK...
  local tp pp dp zero
  IFS=, read -r tp pp dp zero <<<"$1"
  checkpoint_cost "$1" $((tp * pp * dp)) 12 768 "$tp" "$pp" "$zero" fp32 none "${@:2}"
}
theirs() {  # CASE RANKS WORK FOLDER
  measure "$1" "$python" -m torch.distributed.run --standalone --nproc_per_node "$2" \
    "$repository/benchmarks/peer_checkpoint.py" "$3" checkpoints "$4"
}

ours 1,1,2,1 train save=checkpoints
"$bin/ds_to_universal" --input_folder checkpoints/global_step1 --output_folder checkpoints/global_step1_universal >log 2>&1
rm measured
for ((i = 0; i < rounds; ++i)); do
  rm -rf dcp deepspeed
  ours 1,1,2,1 train save=saved async=async
  rm -r saved async
  if [[ $python ]]; then
    theirs dcp 2 dcp-save dcp
    rm -r async
  fi
  for mesh in "${meshes[@]}"; do
    warm checkpoints
    ours "$mesh" universal=checkpoints direct=checkpoints
  done
  [[ $python ]] || continue
  warm checkpoints dcp
  for ranks in 1 2 4; do theirs "dcp-$ranks" "$ranks" dcp-load dcp; done
  theirs deepspeed 2 deepspeed deepspeed
done

gb() { awk -v b="$(of "$@")" 'BEGIN {printf "%.3f", b / 1e9}'; }
echo "| tp, pp, dp, ZeRO | GB held by a rank | universal load, s | GB read | read / held | resharding load, s | GB read | read / held |"
echo "|---|---|---|---|---|---|---|---|"
for mesh in "${meshes[@]}"; do
  awk -v mesh="$mesh" -v held="$(gb "$mesh" direct held)" -v us="$(of "$mesh" universal s)" -v ur="$(gb "$mesh" universal read)" \
    -v ds="$(of "$mesh" direct s)" -v dr="$(gb "$mesh" direct read)" \
    'BEGIN {printf "| %s | %s | %s | %s | %.3f | %s | %s | %.3f |\n", mesh, held, us, ur, ur / held, ds, dr, dr / held}'
done
load_row() {  # WHAT CASE WORK
  echo "| $1 | $(gb "$2" "$3" held) | $(of "$2" "$3" s) | $(gb "$2" "$3" read) |"
}
echo
echo "| load | GB held by a rank | s | GB read |"
echo "|---|---|---|---|"
for ranks in 1 2 4; do
  load_row "resharding, ZeRO $((ranks > 1 ? 3 : 1)), dp $ranks" 1,1,$ranks,$((ranks > 1 ? 3 : 1)) direct
  [[ ! $python ]] || load_row "DCP, dp $ranks" dcp-$ranks load
done
load_row "universal, ZeRO 1, dp 2" 1,1,2,1 universal
[[ ! $python ]] || load_row "DeepSpeed, universal, ZeRO 1, dp 2" deepspeed load

save_row() {  # WHAT CASE WORK NAME: NAME has the seconds
  awk -v what="$1" -v gb="$(gb "$2" "$3" bytes)" -v s="$(of "$2" "$3" "$4")" 'BEGIN {printf "| %s | %s | %s | %.2f |\n", what, gb, s, gb / s}'
}
echo
echo "| save of 2 ranks | GB | s | GB/s |"
echo "|---|---|---|---|"
save_row "ours" 1,1,2,1 save s
if [[ $python ]]; then
  save_row "DCP" dcp save s
  save_row "DeepSpeed, no fsync" deepspeed save s
  save_row "DeepSpeed, then sync" deepspeed save synced
fi
echo
echo "| asynchronous save of 2 ranks | GB | the call, s | until state may change, s | until done, s |"
echo "|---|---|---|---|---|"
async_row() { echo "| $1 | $(gb "$2" async bytes) | $(of "$2" async returned) | $(of "$2" async free) | $(of "$2" async s) |"; }
async_row "ours" 1,1,2,1
[[ ! $python ]] || async_row "DCP" dcp
