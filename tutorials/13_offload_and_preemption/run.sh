#!/usr/bin/env bash
# Keeps optimizer state and parameters in a file instead of in memory. Also stops a run by a signal and resumes it.
source "$(dirname "${BASH_SOURCE[0]}")/../lesson.sh" "$@"
ask 1% "How many MiB do the buffers take, for two blocks of 2^20 elements of the weights and of both moments in fp32?" \
    'memory disk "offload buffers"'
ask 1% "How many MiB of moments does a rank keep on disk, if its half of the parameters takes 24.3?" \
    'memory memory "optimizer state"'
steps=10
# The model is large enough to have state to keep out of memory.
recipe+=(--train-iters $steps --hidden-size 512 --global-batch-size 2 --log-interval 1)
disk=(--offload-optimizer nvme --offload-param nvme --nvme-path "$out")

row() { say "$(printf '%-10s %11s %10s %8s %6s %16s' "$@")"; }
train 1,1,2,3 memory --report-memory
train 1,1,2,3 disk --report-memory "${disk[@]}"
row "ZeRO 3" parameters optimizer buffers all "loss at step $steps"
for run in memory disk; do
  buffers=$(memory $run 'offload buffers')
  row "$run" "$(memory $run parameters)" "$(memory $run 'optimizer state')" "${buffers:--}" \
      "$(memory $run 'kept between steps, by part')" "$(loss $run $steps)"
done
say "(MiB a rank, of two)"
bitwise memory disk "on disk against in memory"

# The order of Streamer::sweep(), if AdamW takes as long as a read and a write: one disk, one AdamW and two buffers. A block has 2^20
# elements, and a sweep goes through a rank's moments.
awk -v blocks="$(memory memory parameters | awk '{print int($1 / 4) + 1}')" '
  function put(where, kind, block, from, slots, t) { for (t = from; t < from + slots; ++t) cell[where, t] = kind block }
  function disk(kind, block, after) { # the next free slot of the disk
    if (free < after) free = after
    put("disk", kind, block, free, 1); put("buffer " block % 2, kind, block, free, 1)
    return ++free
  }
  BEGIN {
    free = done = 0
    read[0] = disk("R", 0, 0)
    for (i = 0; i < blocks; ++i) {
      if (i + 1 < blocks) read[i + 1] = disk("R", i + 1, done)
      from = done > read[i] ? done : read[i]
      put("AdamW", "U", i, from, 2); put("buffer " i % 2, "U", i, from, 2)
      done = from + 2
      disk("W", i, done)
    }
    rows = split("disk,buffer 0,buffer 1,AdamW", row, ",")
    for (k = 1; k <= rows; ++k) {
      line = row[k] ":"
      for (t = 0; t < free; ++t) line = line " " ((row[k], t) in cell ? cell[row[k], t] : ".")
      print line
    }
    print "R = read\nU = update\nW = write"
  }' >"$out/buffers.txt"
quietly "$out/plot.log" "$bin/plot_figure" cells --output "$out/buffers.svg" \
    --title "Two buffers over time, with the numbers of the blocks" "$out/buffers.txt"

saves=("${disk[@]}" --save "$out/checkpoints" --load "$out/checkpoints")
mpi=yes command_of 1,1,2,3 stopped "${saves[@]}"
(launch) >"$out/stopped.log" 2>&1 &
job=$!
until grep -qs '^iter *3/' "$out/stopped.log" || ! kill -0 $job 2>/dev/null; do sleep 0.05; done
pkill -TERM -P $job -x pretrain_gpt || fail "the run ended before it was told to stop"
wait $job || fail "stopped, it did not exit with 0: $(tail -3 "$out/stopped.log")"
at=$(($(wc -l <"$out/stopped.csv") - 1))
((at < steps)) || fail "the run ended before it was told to stop"
[[ $(cat "$out/checkpoints/latest") == global_step$at ]] || fail "it stopped at step $at, and latest is another"
say "# after step 3: pkill -TERM pretrain_gpt" "told to stop by SIGTERM: exit status 0, and latest is the step where it stopped"
train 1,1,2,3 resumed "${saves[@]}"
{ cat "$out/stopped.csv"; sed 1d "$out/resumed.csv"; } >"$out/parts.csv"
[[ $(wc -l <"$out/parts.csv") == $((steps + 1)) ]] || fail "the same command repeated or left out steps"
bitwise memory parts "stopped, and the same command again, against never stopped"
