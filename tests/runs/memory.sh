#!/usr/bin/env bash
# A rank's memory between steps matches the formulas of zero/memory_form.h within 2 %, by part and by the allocator's count:
# weights, gradients, masters and moments. No whole gradient or parameter hides anywhere.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
warm_start

# The weights are larger than a step's activations.
model+=(--num-layers 4 --hidden-size 256 --vocab-size 1000 --lr-warmup-iters 0 --train-iters 2 --report-memory)

# near WHAT ALLOCATED CLOSED_FORM
near() {
  awk -v a="$2" -v c="$3" 'BEGIN {d = a - c; exit !(c > 0 && d <= 0.02 * c && -d <= 0.02 * c)}' ||
    fail "$1: $2 MiB allocated, $3 MiB expected: $(cat log)"
}
value() { sed -n "s/^memory: $1  *\([0-9.].*\)$/\1/p" log; }

as_expected() {  # MESH FLAGS...
  train "$1" /dev/null "${@:2}" >log || fail "$*: $(tail -5 log)"
  for part in parameters gradients "optimizer state" "kept between steps, by part" "kept between steps, by the allocator"; do
    near "tp,pp,dp,zero = $*: $part" $(value "$part")
  done
  echo "ok: tp,pp,dp,zero = $*: $(value "kept between steps, by the allocator" | awk '{printf "%s MiB kept, %s expected", $1, $2}')"
}
for mesh in 1,1,4,0 1,1,4,1 1,1,4,2 1,1,4,3 2,2,2,1 2,2,2,3 1,2,3,2; do
  for precision in "" --bf16 --fp16; do as_expected $mesh $precision; done
done
for mesh in 1,1,2,0 2,2,2,1 1,2,2,3; do as_expected $mesh --bf16 --lora-rank 64 --lora-target all-linear; done
for mesh in 1,1,4,0 2,2,2,1 1,2,2,3; do as_expected $mesh --bf16 --same-bits; done

# States that an optimizer does not have take no memory. Muon's matrices have one state, the rest two.
for optimizer in sgd "sgd --sgd-momentum 0" lion muon; do
  for mesh in 1,1,4,0 1,1,4,1 2,2,2,3; do
    for precision in "" --bf16; do
      # shellcheck disable=SC2086
      train $mesh /dev/null $precision --optimizer $optimizer >log || fail "$optimizer: $(tail -5 log)"
      what="$optimizer, tp,pp,dp,zero = $mesh ${precision:-fp32}"
      if [[ $optimizer == *0 && ! $precision ]]; then
        [[ "$(value "optimizer state")" =~ ^0.000\ +0.000$ ]] || fail "$what: $(value "optimizer state")"
      else
        near "$what: optimizer state" $(value "optimizer state")
      fi
      near "$what: kept" $(value "kept between steps, by the allocator")
      echo "ok: $what: $(value "optimizer state" | awk '{printf "%s MiB of states, %s expected", $1, $2}')"
    done
  done
done

# Offloaded state takes no memory. Buffers take its place, whatever the size of the model.
zero() { [[ $2 == 0.000 && $3 == 0.000 ]] || fail "$1: $2 MiB allocated, $3 expected: $(cat log)"; }
for mesh in 1,1,4,1 1,2,2,2 1,1,4,3; do
  for precision in "" --bf16; do
    what="tp,pp,dp,zero = $mesh ${precision:-fp32}, offloaded"
    offload=(--nvme-path . --offload-optimizer nvme)
    [[ $mesh != *3 ]] || offload+=(--offload-param nvme)
    train $mesh /dev/null $precision "${offload[@]}" >log || fail "$what: $(tail -5 log)"
    zero "$what: optimizer state" $(value "optimizer state")
    [[ $mesh != *3 ]] || zero "$what: parameters" $(value parameters)
    for part in "offload buffers" "kept between steps, by part" "kept between steps, by the allocator"; do
      near "$what: $part" $(value "$part")
    done
    echo "ok: $what: $(value "kept between steps, by the allocator" | awk '{printf "%s MiB kept, %s expected", $1, $2}')"
  done
done

# A stage-3 run never has the whole model in memory, not even at its start. Only a layer or two are in flight.
train 1,1,4,3 /dev/null --bf16 --num-layers 12 --train-iters 1 >log || fail "$(tail -5 log)"
read -r kept _ < <(value "kept between steps, by the allocator")
peak=$(value "layers in flight, peak")
awk -v p="$peak" -v k="$kept" 'BEGIN {whole = k * 4 * 2 / 18; printf "ok: %.1f MiB of %.1f MiB of weights in flight at most\n", p, whole; exit !(p < 0.4 * whole)}' ||
  fail "layers in flight: $(cat log)"
