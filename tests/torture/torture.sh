#!/usr/bin/env bash
# Nothing is lost. The test kills ranks, mpirun and the converter with kill -9 at random moments, fills the disk for a while,
# and changes, empties, truncates or removes files. After each fault the newest good checkpoint loads, its files are intact, and
# the message names the fault. The run that was killed again and again ends like the one left alone, bit for bit.
#
#   KILLS=20 FULL=4 DAMAGES=8 SEED=5 tests/torture/torture.sh FOLDER_OF_EXECUTABLES        a long one: KILLS=300 FULL=40 DAMAGES=all
source "$(dirname "${BASH_SOURCE[0]}")/../runs/common.sh" "$1"
kills=${KILLS:-20} full=${FULL:-4} damages=${DAMAGES:-8}
RANDOM=${SEED:-5}

flags=(--global-batch-size 4 --num-layers 3 --train-iters $((100 * kills)) --lr-decay-iters $((100 * kills)) --log-interval 1)  # the end is never reached
mesh=1,2,2,1
newest() { cat "$1/latest" 2>/dev/null || echo none; }
verified() { "$bin/ckpt" verify "$1" >verify.log 2>&1 || fail "$2: $(cat verify.log)"; }  # checks every byte against the manifest

# Kills one rank, all, or mpirun with kill -9, while training, saving (every other time asynchronously), moving `latest` and
# removing old tags. In two of four starts the ranks are threads of one process.
killed=0 lost=0 saves=0 hung=0
for ((i = 1; killed < kills; ++i)); do
  before=$(newest parts)
  beside=()
  ((i % 2)) || beside=(--async-save)
  mpi=
  ((i % 4 > 1)) || mpi=yes
  train $mesh parts.csv "${flags[@]}" --load parts --save parts --save-interval 1 --save-total-limit 2 "${beside[@]}" \
    >"part$i.log" 2>&1 &
  job=$!
  until [[ $(process_of "$job") != "$job" ]] || ! kill -0 "$job" 2>/dev/null; do sleep 0.01; done
  if ((i % 5)); then until grep -qs '^iter ' "part$i.log" || ! kill -0 "$job" 2>/dev/null; do sleep 0.02; done; fi
  sleep "0.$((RANDOM % (i % 5 ? 5 : 10)))$((RANDOM % 10))"  # some ten steps, each with a save, or the start
  mapfile -t ranks < <(ranks_of "$job")
  case $((${#ranks[@]} == 0 ? 1 : RANDOM % 4)) in  # 1 also if there are no ranks yet
    0) kill -9 "${ranks[@]}" ;;
    1) kill -9 "$(mpirun_of "$job" || echo "$job")" ;;
    *) kill -9 "${ranks[RANDOM % ${#ranks[@]}]}" ;;
  esac 2>/dev/null || true
  # Open MPI 4's mpirun may hang in PMIx_server_finalize once its ranks are gone.
  if ! timeout 120 tail --pid="$job" -s 0.05 -f /dev/null; then
    ! ps -o stat= -p "$(IFS=, && echo "${ranks[*]}")" | grep -qv '^Z' || fail "start $i: ranks go on: $(tail -3 "part$i.log")"
    kill -9 "$(mpirun_of "$job")" || true
    ((hung += 1))
  fi
  wait "$job" 2>/dev/null && fail "start $i: it survived: $(tail -3 "part$i.log")"
  for rank in "${ranks[@]}"; do
    while kill -0 "$rank" 2>/dev/null; do kill -9 "$rank" 2>/dev/null || true; sleep 0.02; done
  done
  ((killed += 1))
  # The run loaded the newest checkpoint. Every reported save is there, or a newer one is.
  if [[ $before != none ]] && grep -q '^iter ' "part$i.log"; then
    grep -q "loaded parts/$before: " "part$i.log" || fail "start $i did not load $before: $(cat "part$i.log")"
  fi
  reported=$(grep -o 'saved parts/global_step[0-9]*' "part$i.log" | tail -1 | grep -o '[0-9]*$' || echo 0) now=$(newest parts)
  ((saves += $(grep -c '^saved parts/' "part$i.log" || true)))
  [[ $now == none && $reported == 0 ]] && continue
  ((${now#global_step} >= reported)) || { ((lost += 1)); fail "start $i: step $reported was saved, latest is $now"; }
  verified parts "start $i"
done
mpi=
declare -p model flags trainer >arrays  # for full disks, which a warm trainer would not see
warm_start
steps=$(newest parts) steps=${steps#global_step}
train $mesh whole.csv "${flags[@]}" --train-iters "$((steps + 3))" >whole.log 2>&1 || fail "$(tail -30 whole.log)"
train $mesh parts.csv "${flags[@]}" --train-iters "$((steps + 3))" --load parts --save parts >last.log 2>&1 || fail "$(tail -30 last.log)"
same whole.csv parts.csv "killed $killed times in $steps steps and $saves saves, $lost lost (mpirun hung $hung times)"

# Kills the converter at any moment. Started again, it leaves the same files as without a kill.
sums() { (cd "$1" && find . -type f | sort | xargs md5sum); }
tag=$(newest parts)
convert parts "$tag"
sums "parts/${tag}_universal" >expected.sums
for ((killed = 0, i = 0; killed < kills; ++i)); do
  ((i < 50 * kills)) || fail "the converter was killed $killed times in $i: too fast"
  rm -rf "parts/${tag}_universal"
  "$bin/ds_to_universal" --input_folder "parts/$tag" --output_folder "parts/${tag}_universal" >/dev/null 2>&1 &
  job=$! status=0
  sleep "0.0$((RANDOM % 10))$((RANDOM % 10))"
  kill -9 $job 2>/dev/null || true
  wait $job 2>/dev/null || status=$?
  ((status != 137)) || ((killed += 1))
  [[ ! -e parts/${tag}_universal ]] || sums "parts/${tag}_universal" | cmp - expected.sums || fail "half a universal folder"
  convert parts "$tag"
  sums "parts/${tag}_universal" | cmp - expected.sums || fail "after a kill the conversion differs"
done
echo "ok: the converter, killed $killed times in $i"

# A disk fills up during a run, each time at another write, and has room again later. The run goes on until it is told to stop.
bytes=$(du -sb "parts/$tag" | cut -f1)
full_disk() {  # LEFT FLAGS...: leaves LEFT bytes free for a while
  local disk=$scratch/disk job room last
  mkdir -p "$disk"
  mount -t tmpfs -o "size=$((6 * bytes))" tmpfs "$disk"
  train $mesh /dev/null "${flags[@]}" --save "$disk/run" --save-interval 1 --save-total-limit 2 "${@:2}" >full.log 2>&1 &
  job=$!
  until [[ $(newest "$disk/run") =~ step([3-9]|..+)$ ]]; do kill -0 $job || fail "$(cat full.log)"; sleep 0.02; done
  until grep -q "SAVE FAILED" full.log; do  # again and again: removing a tag makes room for the next
    kill -0 $job 2>/dev/null || fail "no save failed with $1 bytes left: $(tail -3 full.log)"
    room=$(($(df --output=avail -B1 "$disk" | tail -1) - $1))
    ((room <= 0)) || head -c "$room" /dev/zero >>"$disk/ballast" 2>/dev/null || true
    sleep 0.02
  done
  verified "$disk/run" "while the disk is full"
  rm "$disk/ballast"
  last=$(newest "$disk/run")
  while [[ $(newest "$disk/run") == "$last" ]]; do kill -0 $job || fail "a full disk ended the run: $(tail -5 full.log)"; sleep 0.02; done
  kill -USR1 "$(pgrep -P $job -x pretrain_gpt || echo $job)"
  wait $job || fail "a full disk ended the run: $(tail -5 full.log)"
  grep -q "SAVE FAILED: .*No space left on device" full.log || fail "$(grep FAILED full.log)"
  [[ $(newest "$disk/run") == global_step$(grep -c '^iter ' full.log) ]] || fail "latest is $(newest "$disk/run"): $(tail -5 full.log)"
  verified "$disk/run" "after the disk was full"
  ! find "$disk" -name '*.tmp' | grep -q . || fail "left: $(find "$disk" -name '*.tmp')"
  grep -c "SAVE FAILED" full.log >>failures
}
export -f full_disk launch train newest verified fail
export bin here scratch bytes mesh mpi
if unshare -m true 2>/dev/null; then
  for ((i = 0; i < full; ++i)); do
    unshare -m bash -ec "source '$scratch/arrays'; cd '$scratch'; full_disk $((i * bytes / full)) $( ((i % 2)) && echo --async-save)" || fail "see above"
  done
  unshare -m bash -ec "mkdir tiny; mount -t tmpfs -o size=64k tmpfs tiny
    ! '$bin/ds_to_universal' --input_folder 'parts/$tag' --output_folder tiny/u --dry-run >dry.log 2>&1" || fail "$(cat dry.log)"
  grep -q 'would get .* files' dry.log && grep -q '[0-9] [KM]B are needed, [0-9.]* K*B are free' dry.log || fail "$(cat dry.log)"
  echo "ok: a disk that is full for a while, $full times: $(awk '{n += $1} END {print n}' failures) saves failed"
else
  echo "left out: a full disk, for want of the right to mount a small one"
fi

# Damages files of the newest tag, one at a time. The tag before it is loaded, unless the damaged byte has no meaning, or only
# the manifest is gone.
rm -rf "parts/${tag}_universal" parts/latest_universal
mapfile -t files < <(cd "parts/$tag" && find . -type f -printf '%f\n' | sort)
[[ $(find parts -mindepth 1 -maxdepth 1 -type d | wc -l) -ge 2 ]] || fail "one tag only: $(ls parts)"
train $mesh more.csv "${flags[@]}" --train-iters "$((steps + 4))" >more.log 2>&1 || fail "$(tail -30 more.log)"
before=$(cd parts && ls -d global_step*/ | sort -t p -k 2n | tail -2 | head -1)
before=${before%/}
fell=0 first=$((RANDOM % ${#files[@]}))
[[ $damages != all ]] || damages=$((4 * ${#files[@]}))
for ((i = 0; i < damages; ++i)); do
  rm -rf hurt hurt.csv
  cp -r parts hurt
  name=${files[(first + i / 4) % ${#files[@]}]} file=hurt/$tag/$name
  size=$(stat -c %s "$file") kind=$((i % 4))
  case $kind in
    0) printf '\xA5' | dd of="$file" bs=1 seek="$(((RANDOM * 32768 + RANDOM) % size))" conv=notrunc status=none ;;
    1) truncate -s "$(((RANDOM * 32768 + RANDOM) % size))" "$file" ;;
    2) : >"$file" ;;
    3) rm "$file" ;;
  esac
  train $mesh hurt.csv "${flags[@]}" --train-iters "$((steps + 4))" --load hurt >hurt.log 2>&1 || fail "kind $kind of $name: $(tail -5 hurt.log)"
  if grep -q "FALLING BACK" hurt.log; then
    ((fell += 1))
    grep -q "WARNING: $tag is damaged: .*$name.*FALLING BACK" hurt.log || fail "kind $kind of $name: $(grep WARNING hurt.log)"
    grep -q "loaded hurt/$before:" hurt.log || fail "not $before, of $(ls parts | tr '\n' ' '): $(cat hurt.log)"
  else
    ((kind == 0 || kind == 3)) && grep -q "loaded hurt/$tag:" hurt.log || fail "kind $kind of $name went unseen: $(cat hurt.log)"
    [[ $kind == 0 || $name == manifest.json ]] || fail "$name is gone, unseen"
  fi
  [[ $(losses hurt.csv | tail -1) == "$(losses more.csv | tail -1)" ]] || fail "kind $kind of $name: another loss"
done
((fell > damages / 4)) || fail "only $fell of $damages damages were seen"
echo "ok: $damages damaged files, $fell of them with another tag to load"
