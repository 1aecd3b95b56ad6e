#!/usr/bin/env bash
# The trip: DeepSpeed trains on 4 ranks, ds_reshard cuts its checkpoint for 3, and unmodified DeepSpeed goes on there. The
# checkpoint of 4 ranks and all losses are what real DeepSpeed left in tests/fixtures/deepspeed/trip. With
# LAUNCHER="deepspeed --num_gpus", or "torchrun --nproc-per-node", train.py makes them anew. The checks are the same, and one more
# compares with the recorded losses.
source "$(dirname "${BASH_SOURCE[0]}")/../lesson.sh" "$@"
needs ds_reshard ckpt
partition() { "$bin/ckpt" inspect "$out/dp3/$tag" | sed -n '/single_partition_of_fp32_groups/ {n; s/.*\[\([0-9]*\)\]$/\1/p}'; }
ask 0 "How many elements has each of 3 partitions of 1572 elements?" partition
part() { "$bin/ckpt" inspect "$out/dp3/$tag" --parameter "$parameter" | grep -o 'W.flat.0:[0-9]*' | head -1 | cut -d : -f 2; }
ask 0 "How many of W's 144 elements does rank 0 of 3 have, if 384 elements come before W?" part
read -ra launcher <<<"${LAUNCHER:-}"
record=$out
[[ -z ${LAUNCHER:-} ]] || record=$out/recorded
mkdir -p "$record"
tag=global_step10 parameter=model.layers.0.self_attn.q_proj.weight

# on RANKS ARGUMENTS...: runs train.py, if there is a launcher.
on() { [[ -z ${LAUNCHER:-} ]] || quietly "$out/train.log" "${launcher[@]}" "$1" "tutorials/$tutorial/train.py" "${@:2}"; }

# reshard FROM TO TARGET
reshard() {
  quietly "$out/reshard.log" "$bin/ds_reshard" --input_folder "$out/$1/$tag" --output_folder "$out/$2/$tag" --target "$3"
  say "$(grep '^every element' "$out/reshard.log")"
}

# where CHECKPOINT: what it is, and which rank has which elements of the parameter's master.
where() {
  quietly "$out/inspect.log" "$bin/ckpt" inspect "$out/$1/$tag"
  say "$(sed -n '/^ordinary checkpoint/,/elements; /p' "$out/inspect.log")"
  quietly "$out/inspect.log" "$bin/ckpt" inspect "$out/$1/$tag" --parameter "$parameter"
  say "$(sed -n '/^W = /,/^exp_avg:/{/^exp_avg:/d; /^$/d; p}' "$out/inspect.log")"
}

# same A B: checks that no weight, moment or step differs by a bit.
same() {
  quietly "$out/diff.log" "$bin/ckpt" diff "$out/$1/$tag" "$out/$2/$tag"
  say "$(tail -1 "$out/diff.log")"
}

# continues WHOLE RESUMED WHAT
continues() {
  say "$1: loss $(loss "$1" 11) at step 11, $(loss "$1" 20) at step 20" \
      "$2: loss $(loss "$2" 11) at step 11, $(loss "$2" 20) at step 20"
  compare "$1" "$2" "$3" "the first loss within 1e-6, all within 2e-3" --first-tolerance 1e-6 --tolerance 2e-3
}

quietly "$out/tar.log" tar xf tests/fixtures/deepspeed/trip/trip.tar.xz -C "$record"
on 4 loop "$out/whole.csv" --save "$out/dp4"
where dp4
reshard dp4 dp3 dp=3
where dp3
same dp4 dp3
for mesh in dp4 dp3; do
  quietly "$out/figure.log" "$bin/plot_figure" checkpoint --output "$out/$mesh.svg" --parameter "$parameter" "$out/$mesh/$tag"
done

reshard dp3 back dp=4
reshard dp4 straight dp=4
same dp4 back
quietly "$out/diff.log" diff -r "$out/straight/$tag" "$out/back/$tag"
say "ok: cut for 3 ranks and again for 4, each file has the bytes of one that was never cut for 3"
reshard dp4 zero3 dp=3,zero=3
where zero3
same dp4 zero3
quietly "$out/dcp.log" "$bin/ckpt" convert "$out/dp4/$tag" "$out/fsdp2/$tag" --to dcp
say "$(sed 's/: 2 files.*//; s|^.*/fsdp2|fsdp2|' "$out/dcp.log")"
same dp4 fsdp2
quietly "$out/dcp.log" "$bin/ckpt" convert "$out/fsdp2/$tag" "$out/from_fsdp2/$tag" --to deepspeed --target dp=3,zero=3,dtype=bf16
same dp4 from_fsdp2

on 3 loop "$out/resumed.csv" --load "$out/dp3"
continues whole resumed "DeepSpeed on 3 ranks against the 4 that went on"
on 4 trainer "$out/trainer.csv" --save "$out/trainer4"
[[ -z ${LAUNCHER:-} ]] || reshard trainer4/checkpoint-10 trainer3/checkpoint-10 dp=3
on 3 trainer "$out/trainer-resumed.csv" --load "$out/trainer3/checkpoint-10"
continues trainer trainer-resumed "HF Trainer on 3 ranks against the 4 that went on"
[[ -z ${LAUNCHER:-} ]] || for run in whole trainer; do
  close "recorded/$run" "$run" 1e-2 "$run: now against the recorded losses"
done
quietly "$out/plot.log" "$bin/plot_loss" --output "$out/loss.svg" --title "DeepSpeed, saved by 4 ranks and resumed on 3" \
    "4 ranks=$out/whole.csv" "3 ranks=$out/resumed.csv"
quietly "$out/plot.log" "$bin/plot_loss" --output "$out/trainer.svg" --title "HF Trainer, saved by 4 ranks and resumed on 3" \
    "4 ranks=$out/trainer.csv" "3 ranks=$out/trainer-resumed.csv"
