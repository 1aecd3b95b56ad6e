#!/usr/bin/env bash
# Compares with real torch, DeepSpeed, transformers, tokenizers, megatron-core, Megatron-DeepSpeed and TensorBoard: runs the scripts
# of this folder, two at a time, and ends when one fails. Installs the packages once into a venv. The last lines say how long each
# script took.
#
#   tests/interop/run.sh [FOLDER_OF_EXECUTABLES]          default: build/release/bin
#   ANYMESH_INTEROP_VENV=/path tests/interop/run.sh       the venv; default: build/interop-venv
#
# checkpoints.sh compares checkpoints, data.sh token files and samples, tokenizers.sh ids, tensorboard.sh scalars. hf_convert.sh
# converts models of transformers. reshard.sh resumes DeepSpeed from what ds_reshard writes, autotp.sh from what ds_to_universal
# makes of its AutoTP. optimizers.sh goes there and back with SGD, Lion and Muon, dialects.sh with FSDP2 and Megatron-Core. autoep.sh
# moves mixtures of experts to and from its AutoEP, python.sh is the Python package, megatron.sh resumes Megatron-DeepSpeed.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
scripts=(checkpoints autoep dialects tokenizers hf_convert reshard autotp optimizers python data tensorboard megatron)  # about the longest first
declare -A name=() began=()  # of the jobs that run
table=()
export ANYMESH_INTEROP_SOCKET=$PWD/socket
set -m  # a process group for each job

start() { # NAME COMMAND...
  "${@:2}" >"$1.log" 2>&1 &
  name[$!]=$1 began[$!]=$SECONDS
}

# finish: waits for one job, and shows its output.
finish() {
  local job script result=ok
  wait -n -p job "${!name[@]}" || result=FAILED
  script=${name[$job]}
  [[ $result == FAILED ]] || ! grep -q ^SKIPPED "$script.log" || result=SKIPPED
  row "$job" "$result"
  unset "name[$job]"
  printf '\n==== %s\n' "${table[-1]}"
  cat "$script.log"
  [[ $result != FAILED ]] || fail "$script: see above"
}

row() { table+=("$(printf '%-12s %4d s  %s' "${name[$1]}" $((SECONDS - began[$1])) "$2")"); }  # JOB RESULT

end() {
  local job
  for job in "${!name[@]}"; do
    kill -- "-$job" 2>/dev/null || true
    [[ ${name[$job]} == warm ]] || row "$job" ended
  done
  rm -rf "$scratch"
  printf '\n==== %d s\n' "$SECONDS"
  printf '%s\n' "${table[@]}"
}
trap end EXIT

for script in "${scripts[@]}"; do
  ((${#name[@]} < 3)) || finish
  start "$script" "$repository/tests/interop/$script.sh" "$bin"
  if [[ $script == checkpoints ]]; then  # which trains before it needs the packages
    install
    start warm env "${settings[@]}" "$venv/bin/python" "$repository/tests/interop/warm.py" serve "$ANYMESH_INTEROP_SOCKET"
  fi
done
while ((${#name[@]} > 1)); do finish; done
