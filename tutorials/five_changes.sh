#!/usr/bin/env bash
# Compares a run that changes its mesh, its ZeRO stage and its precision five times with a run that never stopped:
#
#   tutorials/five_changes.sh                   on the King James Bible
#   CORPUS=your.txt tutorials/five_changes.sh   on a text of yours
#   STEPS=120 tutorials/five_changes.sh         in so many steps, a multiple of 6; 300 if not given
#   EXPERTS=8 tutorials/five_changes.sh         with so many experts in each layer, shared by other ranks each time
#
# Trains 300 steps twice. The second run stops after each sixth of them and resumes on another mesh, by turns through a universal
# folder and directly. Succeeds only if the final validation losses are within 1 % of each other. Model, text and set-up are those of
# quickstart.sh. Everything is written to runs/five_changes/, made anew each time.
tutorial=five_changes
length=$((${STEPS:-300} / 6))
steps=$((6 * length))
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
((steps > 0 && steps == ${STEPS:-$steps})) || fail "STEPS=$STEPS, expected a multiple of 6: STEPS=300 tutorials/five_changes.sh"

# Mesh (tensor, pipeline, data parallel size, ZeRO stage), precision, the way to load, and the ranks that share experts.
segments=("2,2,2,1 fp32 start 2" "1,4,1,0 bf16 universal 1" "1,1,4,3 fp16 direct 4"
          "2,1,3,2 fp32 universal 1" "1,3,2,1 fp16 direct 2" "4,2,1,0 bf16 universal 1")
[[ -z ${EXPERTS:-} ]] ||
  model+=(--num-experts "$EXPERTS" --moe-ffn-hidden-size 64 --moe-aux-loss-coeff 0.01 --swiglu --disable-bias-linear)
width=9; [[ -z ${EXPERTS:-} ]] || width=15  # of the column with the way
# experts SEGMENT: prints the flag for its ranks that share experts.
experts() { [[ -z ${EXPERTS:-} ]] || echo --expert-model-parallel-size "${1##* }"; }
declare -A precision_flags=([fp32]="" [bf16]=--bf16 [fp16]="--fp16 --initial-loss-scale 65536")

# train_segment I: trains from the checkpoint of the previous segment to the next one.
train_segment() {
  local mesh precision way ep at=$((($1 - 1) * length)) load=()
  read -r mesh precision way ep <<<"${segments[$1 - 1]}"
  case $way in
    universal)
      convert "$out/checkpoints/global_step$at" "$out/universal/global_step${at}_universal"
      load=(--load "$out/universal" --universal-checkpoint) ;;
    direct) load=(--load "$out/checkpoints") ;;
  esac
  # shellcheck disable=SC2046,SC2086
  train "$mesh" "segment$1" ${precision_flags[$precision]} $(experts "${segments[$1 - 1]}") "${load[@]}" --save "$out/checkpoints" --exit-interval $length
}

# row I: prints one line of the table, for the segment's last step.
row() {
  local tp pp dp zero precision way ep
  IFS=', ' read -r tp pp dp zero precision way ep <<<"${segments[$1 - 1]}"
  [[ -z ${EXPERTS:-} ]] || way+=", ep $ep"
  awk -F, -v last=$(($1 * length)) -v what="$(printf '%-9s %-12s %5d  %-9s %-*s' $((($1 - 1) * length + 1))-$(($1 * length)) \
      "$tp x $pp x $dp" "$zero" "$precision" "$width" "$way")" '
    $1 == last {loss[FILENAME] = $3}
    END {mine = loss[ARGV[1]]; theirs = loss[ARGV[2]]
         printf "%s %10.6f %13.6f %8.3f %%\n", what, mine, theirs, 100 * (mine - theirs) / theirs}' \
      "$out/segment$1.csv" "$out/reference.csv"
}

prepare

step "Train $steps steps on $(name "${segments[0]%% *}") without stopping (all runs: two to five minutes)"
# shellcheck disable=SC2046
train "${segments[0]%% *}" reference $(experts "${segments[0]}")

curves=("uninterrupted, fp32=$out/reference.csv")
for ((i = 1; i <= ${#segments[@]}; ++i)); do
  read -r mesh precision way _ <<<"${segments[i - 1]}"
  label="$(name "$mesh"), ZeRO ${mesh##*,}, $precision"
  step "Steps $(((i - 1) * length + 1)) to $((i * length)) on $label ($way)"
  train_segment $i
  curves+=("from $(((i - 1) * length + 1)): $label=$out/segment$i.csv")
done

step "Compare"
"$bin/plot_loss" --output "$out/loss_curves.svg" --title "Five changes of mesh, ZeRO stage and precision in $steps steps" \
    "${curves[@]}" >"$out/comparison.log" || fail "plot_loss failed"
printf '%-9s %-12s %5s  %-9s %-*s %10s %13s %10s\n' steps 'tp x pp x dp' ZeRO precision "$width" way loss uninterrupted delta
for ((i = 1; i <= ${#segments[@]}; ++i)); do row $i; done
echo "loss: of the last step; at the end, on the validation set:"
failures=0
awk -v loss="$(validation_loss "segment${#segments[@]}")" -v reference="$(validation_loss reference)" 'BEGIN {
  delta = (loss - reference) / reference
  printf "validation loss %.6f, uninterrupted %.6f, delta %.3f %%\n", loss, reference, 100 * delta
  exit !(delta < 0.01 && delta > -0.01)}' || { echo "five_changes: they should be within 1 %" >&2; failures=1; }
echo "curves: $out/loss_curves.svg"
spent "runs"
echo "time: $times"
((failures == 0)) || fail "see above"
