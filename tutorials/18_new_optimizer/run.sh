#!/usr/bin/env bash
# An optimizer of 20 lines gets every mesh, ZeRO stage and kind of checkpoint. Muon, which needs whole matrices, gets them too.
source "$(dirname "${BASH_SOURCE[0]}")/../lesson.sh" "$@"
needs pretrain_signum ds_to_universal
ask 10% "How many bytes of state does Signum keep for a parameter in fp32?" 'per_parameter one "optimizer state"'
ask 0 "How many files has a parameter's folder in the universal checkpoint?" \
    'ls "$out"/universal/*/zero/2.mlp.dense_h_to_4h.weight | wc -l'
program=pretrain_signum
recipe=("${recipe[@]/3e-3/1e-3}" --same-bits)  # a sign may turn by rounding, and a whole step with it
half=$((steps / 2))

train 1,1,1,0 one --report-memory
say "one process: loss $(loss one 1) at step 1, $(loss one 60) at step 60; $(memory one "optimizer state") MiB of states"
train 1,2,1,0 pp2
bitwise one pp2 "pp 2 against one process"
train 2,1,1,0 tp2
bitwise one tp2 "tp 2 against one process"
train 1,1,2,3 zero3
bitwise one zero3 "dp 2, ZeRO 3, against one process"
train 2,2,2,1 whole --save "$out/checkpoints" --save-interval $half
bitwise one whole "tp 2 x pp 2 x dp 2 against one process"

tag=$out/checkpoints/global_step$half
convert "$tag" "$out/universal/global_step${half}_universal"
say "2.mlp.dense_h_to_4h.weight has $(ls -m "$out"/universal/*/zero/2.mlp.dense_h_to_4h.weight)"
quietly "$out/plot.log" "$bin/plot_figure" checkpoint --output "$out/pieces.svg" --parameter 2.mlp.dense_h_to_4h.weight "$tag"
train 1,1,4,2 resumed --load "$out/universal" --universal-checkpoint
bitwise whole resumed "saved on tp2-pp2-dp2, resumed on dp4 with ZeRO 2"
command_of 1,1,1,0 refused --load "$out/checkpoints" --load-tag global_step$half --optimizer adam
if (launch) >"$out/refused.log" 2>&1; then fail "AdamW goes on with Signum's state"; fi
say "$(tail -1 "$out/refused.log" | cut -d: -f1,3)"

program=pretrain_gpt
train 1,1,1,0 muon --optimizer muon --muon-lr-scale 5
say "Muon: loss $(loss muon 60) at step 60"
train 1,2,1,0 muon-pp2 --optimizer muon --muon-lr-scale 5
bitwise muon muon-pp2 "Muon on pp 2 against one process"
