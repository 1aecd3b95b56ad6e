#!/usr/bin/env bash
# State on disk is the same as state in memory: losses and checkpoints are equal, bit for bit, and a run of either kind resumes
# from a checkpoint of the other.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
warm_start

model+=(--global-batch-size 6)
nvme=(--nvme-path "$scratch" --offload-optimizer nvme)
all=("${nvme[@]}" --offload-param nvme)

# Hashes the files that hold state; other files hold flags.
states() { (cd "$1" && find . -name '*optim_states.pt' -o -name 'layer_*' | sort | xargs md5sum); }

# run WHERE MESH FLAGS...: writes losses to WHERE.csv and the save to the new folder WHERE.
run() {
  rm -rf "$1"
  train "$2" "$1.csv" --lr-decay-iters 9 --save "$1" "${@:3}" >log || fail "tp,pp,dp,zero = ${*:2}: $(tail -5 log)"
}
# alike WHAT FIRST: runs on disk and in memory have the same losses from iteration FIRST on, and the same state.
alike() {
  same memory.csv disk.csv "$1" "$2"
  diff <(states memory) <(states disk) >states.diff || fail "$1: $(head -3 states.diff)"
}

for mesh in 1,1,2,1 1,2,2,2 1,1,3,3 2,1,2,3; do
  for precision in "" --bf16; do
    what="tp,pp,dp,zero = $mesh ${precision:-fp32}"
    run memory $mesh $precision --train-iters 5
    if [[ $mesh == *3 ]]; then
      run disk $mesh $precision --train-iters 5 "${nvme[@]}"
      alike "$what, optimizer on disk" 1
      run disk $mesh $precision --train-iters 5 --nvme-path "$scratch" --offload-param nvme
      alike "$what, parameters on disk" 1
      offload=("${all[@]}")
    else
      offload=("${nvme[@]}")
    fi
    run disk $mesh $precision --train-iters 5 "${offload[@]}"
    alike "$what, all that can be on disk" 1
    mv disk saved
    run memory $mesh $precision --train-iters 7 --load saved
    run disk $mesh $precision --train-iters 7 --load saved "${offload[@]}"
    alike "$what, resumed in memory and on disk" 6
    rm -r saved
  done
done
[[ -z $(find "$scratch" -name 'anymesh.*') ]] || fail "a swap file was left"

# Offloading to host memory, where the state is already.
run memory 1,1,2,3 --train-iters 2
run disk 1,1,2,3 --train-iters 2 --offload-optimizer cpu --offload-param cpu
alike "offloaded to the CPU" 1
grep -q "note: --offload-param cpu: this build trains in the host's memory" log || fail "no note: $(cat log)"

# Partitions of more than one block (2^20 elements).
large=(1,1,2,3 --train-iters 3 --hidden-size 256 --vocab-size 1000 --lr-warmup-iters 1 --bf16)
run memory "${large[@]}"
run disk "${large[@]}" "${all[@]}"
alike "several blocks" 1

# A chain of meshes: on disk, in memory, on disk.
train 2,2,2,1 whole.csv --train-iters 30 >log || fail "$(tail -5 log)"
train 1,1,2,3 test.csv --train-iters 10 --lr-decay-iters 30 "${all[@]}" --save first >log || fail "$(tail -5 log)"
convert first global_step10
train 2,2,1,1 test.csv --train-iters 20 --lr-decay-iters 30 --load first --universal-checkpoint --save second >log || fail "$(tail -5 log)"
convert second global_step20
train 1,1,3,3 test.csv --train-iters 30 "${all[@]}" --load second --universal-checkpoint >log || fail "$(tail -5 log)"
close whole.csv test.csv 1e-4 1 "tp,pp,dp,zero = 1,1,2,3 on disk; 2,2,1,1; 1,1,3,3 on disk; iterations 1-30"
