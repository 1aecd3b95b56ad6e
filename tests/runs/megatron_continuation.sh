#!/usr/bin/env bash
# Runs of real Megatron-DeepSpeed, gone on with here: from its universal folder (fp32) or its ordinary checkpoint (bf16),
# with its flags, on its data, iterations 11 to 20 repeat the losses that it had. So model, data order, schedule and optimizer
# are its own, on every mesh. Its own spread over meshes is 4.8e-7 in fp32 and 1.75e-4 in bf16.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
fixtures=$here/../fixtures
mkdir megatron && cp -r "$fixtures/data" data

# follows ARCHIVE FOLDER TOLERANCE "FLAGS" MESH...
follows() {
  local name=$1 load=$2 tolerance=$3 extra=$4 flags
  tar xf "$fixtures/megatron/$name.tar.xz" -C megatron
  local run; run=$(echo megatron/${name%-universal})
  flags=$(sed -E 's/--(save|save-interval|deepspeed_config|zero-stage|tensor-model-parallel-size|pipeline-model-parallel-size) [^ ]+//g' "$run/flags.txt")
  awk -F, 'NR > 1 {printf "%s,0,%.12g,0,0\n", $1, $4}' "$run/losses.csv" >theirs.csv
  sed -i '1i header' theirs.csv
  for mesh in "${@:5}"; do
    local tp pp dp zero; IFS=, read -r tp pp dp zero <<<"$mesh"
    # shellcheck disable=SC2086
    "$here/../../tools/mpirun.sh" $((tp * pp * dp)) "$bin/pretrain_gpt" $flags $extra --zero-stage "$zero" \
        --tensor-model-parallel-size "$tp" --pipeline-model-parallel-size "$pp" --load "$run/$load" --loss-csv ours.csv \
        >ours.log 2>&1 || fail "$name on $mesh: $(tail -5 ours.log)"
    paste -d, <(losses theirs.csv 11) <(losses ours.csv 11) | awk -F, -v tol="$tolerance" -v what="$name, tp,pp,dp,zero = $mesh" '
      {d = $3 - $8; d = d < 0 ? -d : d; if (d > max) max = d; n += $1 == $6}
      END {printf "%s: %s: max |delta| %.2e over %d iterations\n", (n == 10 && max <= tol) ? "ok" : "FAIL", what, max, n
           exit !(n == 10 && max <= tol)}' || fail "$name on $mesh"
    rm ours.csv
  done
}

follows z1-fp32-tp2pp2dp1-universal universal 5e-6 --universal-checkpoint 1,1,1,0 2,2,1,1 4,1,2,3 1,4,2,2
follows z1-bf16-tp2pp2dp1 checkpoint 5e-3 --bf16 1,1,1,0 2,1,2,1 1,2,2,3
