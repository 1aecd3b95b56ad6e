#!/usr/bin/env bash
# Continues real Megatron-DeepSpeed runs with their flags and data. Iterations 11 to 20 repeat their losses, so the model, the
# data order, the schedule and the optimizer are the same, on every mesh. Megatron-DeepSpeed's own spread over meshes is 4.8e-7
# in fp32 and 1.75e-4 in bf16.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
warm_start
fixtures=$here/../fixtures
mkdir megatron && cp -r "$fixtures/data" data
printf '%-26s %-9s %-30s %s\n' 'checkpoint' 'read' 'mesh' 'max |delta| of 10 losses'

# follows ARCHIVE TOLERANCE "FLAGS" MESH...: MESH is tp,pp,dp,zero. The first one reads the ordinary checkpoint. The others read
# a universal one: DeepSpeed's if the archive has it, else the one that --universal-checkpoint makes from the ordinary
# checkpoint.
follows() {
  local archive=$1 tolerance=$2 extra=$3 run flags load
  run=megatron/${archive%-universal}
  tar xf "$fixtures/megatron/$archive.tar.xz" -C megatron
  flags=$(sed -E 's/--(save|save-interval|deepspeed_config|zero-stage|tensor-model-parallel-size|pipeline-model-parallel-size) [^ ]+//g' "$run/flags.txt")
  awk -F, 'NR > 1 {printf "%s,0,%.12g,0,0\n", $1, $4}' "$run/losses.csv" >theirs.csv
  sed -i '1i header' theirs.csv
  local read=ordinary
  for mesh in "${@:4}"; do
    local tp pp dp zero; IFS=, read -r tp pp dp zero <<<"$mesh"
    load=$run/checkpoint
    [[ -d $load ]] || read=universal
    [[ $read == ordinary || ! -d $run/universal ]] || load=$run/universal
    # The names without a pipeline need one stage. These checkpoints resume under the other names too.
    local named=$flags; ((pp == 1)) || named=${flags/--no-pipeline-parallel/}
    # shellcheck disable=SC2086
    launch $((tp * pp * dp)) $named --zero-stage "$zero" \
        --tensor-model-parallel-size "$tp" --pipeline-model-parallel-size "$pp" --load "$load" --loss-csv ours.csv \
        $([[ $read == ordinary ]] || echo --universal-checkpoint) $extra \
        >ours.log 2>&1 || fail "$archive on $mesh: $(tail -5 ours.log)"
    paste -d, <(losses theirs.csv 11) <(losses ours.csv 11) | awk -F, -v tol="$tolerance" -v run="${run#megatron/}" -v read="$read" \
        -v mesh="tp $tp, pp $pp, dp $dp, ZeRO $zero" '
      {d = $3 - $8; d = d < 0 ? -d : d; if (d > max) max = d; n += $1 == $6}
      END {good = n == 10 && max <= tol; printf "%-26s %-9s %-30s %.2e%s\n", run, read, mesh, max, good ? "" : ": FAIL"; exit !good}' \
      || fail "$archive on $mesh: off by more than $tolerance, or not 10 iterations"
    rm ours.csv
    read=universal
  done
}

# expect TEXT: the last run printed TEXT.
expect() { grep -qF -- "$1" ours.log || fail "nothing of '$1' in: $(head -60 ours.log)"; }

follows z0-fp32-tp2dp2 5e-6 '' 2,1,2,0 1,1,1,1 1,2,2,2 4,1,1,3
follows z1-fp32-tp2pp2dp1-universal 5e-6 '' 1,1,1,0 2,2,1,1 4,1,1,3 1,4,1,2
follows z1-bf16-tp1pp1dp2 5e-3 '' 1,1,2,1 2,1,1,1 2,2,1,2 1,1,1,0
follows z1-bf16-tp2pp2dp1 5e-3 --no-pipeline-parallel 1,1,2,2
expect "parameter names are translated: "
follows z1-bf16-tp2pp2dp1 5e-3 '' 2,2,1,1 1,1,1,0 2,1,2,1 1,2,2,3
follows z1-bf16-tp2pp1dp1-llama 5e-3 '' 2,1,1,1 1,1,2,1 1,2,1,2 2,2,1,3
follows z2-bf16-tp2dp2-nopipe 5e-3 '' 2,1,2,2 1,1,2,1 4,1,1,2 1,2,1,2
expect "parameter names are translated: language_model"
follows z3-bf16-dp2-nopipe 5e-3 '' 1,1,2,3
expect "the checkpoint's run had a weight decay of 0; this one goes on with 0.1"
follows z3-bf16-dp2-nopipe 5e-3 '--weight-decay 0' 1,1,2,3 1,1,1,3 2,1,2,1
