#!/usr/bin/env bash
# --pretend-ranks: one rank of a mesh alone has the traffic and the memory that it has among the others, and what it does in a
# step does not grow with the number of ranks.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

flags=(--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --max-position-embeddings 32 --mock-data --vocab-size 256
       --micro-batch-size 1 --train-iters 2 --lr 1e-3 --eval-iters 0 --report-memory --report-comm)

# rows RECORD: the traffic of rank 0, and the memory that is kept, of a record.
rows() {
  python3 - "$1" <<'END'
import json, sys
for line in open(sys.argv[1]):
    event = json.loads(line)
    if event["event"] == "communication":
        print(*sorted(f"{r['group']} {r['verb']} {r['calls']} {r['bytes']}" for r in event["rows"]), sep="\n")
    if event["event"] == "memory":
        print(*(f"{r['part']} {r['bytes']}" for r in event["rows"] if "closed_form" in r or "buckets" in r["part"] or "flight" in r["part"]),
              sep="\n")
END
}

for mesh in "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --zero-stage 2" "--zero-stage 3" \
    "--pipeline-model-parallel-size 4 --zero-stage 1" "--tensor-model-parallel-size 4 --sequence-parallel --zero-stage 0"; do
  rm -f all.* one.*
  # shellcheck disable=SC2086
  "$bin/pretrain_gpt" "${flags[@]}" $mesh --global-batch-size 8 --local-ranks 8 --loss-csv all.csv >log 2>&1 || fail "$(tail -3 log)"
  # shellcheck disable=SC2086
  "$bin/pretrain_gpt" "${flags[@]}" $mesh --global-batch-size 8 --pretend-ranks 8 --loss-csv one.csv >log 2>&1 || fail "$(tail -3 log)"
  rows all.jsonl >all.rows && rows one.jsonl >one.rows
  [[ $(wc -l <one.rows) -ge 9 ]] && diff all.rows one.rows >difference || fail "$mesh: $(cat difference)"
  echo "ok: alone as among eight: $mesh, $(wc -l <one.rows) rows"
done

# A trace has the payloads that are counted.
"$bin/pretrain_gpt" "${flags[@]}" --global-batch-size 8 --pretend-ranks 8 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 \
  --zero-stage 3 --bf16 --profile-step 2 --trace trace.json --loss-csv one.csv >log 2>&1 || fail "$(tail -3 log)"
rows one.jsonl | grep -E ' (all_reduce|reduce_scatter|all_gather|exchange|broadcast) ' >counted.rows
python3 - >traced.rows <<'END'
import collections, json, math
widths = {"c10::BFloat16": 2, "float": 4, "double": 8, "long": 8, "int64_t": 8}
calls, moved = collections.Counter(), collections.Counter()
for e in json.load(open("trace.json"))["traceEvents"]:
    if e.get("cat") != "phase" or " " not in e["name"] or e["name"].endswith(" wait"):
        continue
    args = e.get("args", {})
    for sizes, dtype in zip(args.get("Input Dims", []), args.get("Input type", [])):
        calls[e["name"]] += 1
        moved[e["name"]] += math.prod(sizes) * widths[dtype]
print(*sorted(f"{name} {calls[name]} {moved[name]}" for name in calls), sep="\n")
END
[[ $(wc -l <traced.rows) -ge 5 ]] && diff counted.rows traced.rows >difference || fail "payloads of a trace: $(cat difference)"
echo "ok: a trace has the payloads of $(wc -l <traced.rows) verbs"

# operators DP STAGE: those of a step. At stages 1 and 2 a GPU copies all parts of a gathered buffer by one operator.
operators() {
  local counted='copy_|aten::mm|aten::empty"|aten::add_'
  case $2 in 1 | 2) counted='foreach_copy_|aten::mm|aten::empty"' ;; esac
  "$bin/pretrain_gpt" "${flags[@]}" --global-batch-size "$1" --pretend-ranks "$1" --pretend-rank $(($1 / 2)) --zero-stage "$2" \
      --profile-step 2 --trace trace.json >log 2>&1 || fail "$(tail -3 log)"
  grep -o '"name":"aten::[^"]*"' trace.json | sort | uniq -c | grep -E "$counted" | tr -s ' \n' ' '
}
for stage in 0 1 2 3; do
  few=$(operators 2 $stage)
  for dp in 16 64; do
    many=$(operators $dp $stage)
    [[ $few == "$many" ]] || fail "ZeRO $stage: dp 2 has$few, dp $dp$many"
  done
  echo "ok: ZeRO $stage has as many operators at dp 2, 16 and 64:$few"
done

"$bin/pretrain_gpt" "${flags[@]}" --global-batch-size 64 --pretend-ranks 64 --pretend-rank 63 --pipeline-model-parallel-size 4 >log || fail "$(tail -3 log)"
grep -q 'rank 63 runs alone, of stage 3, dp 15, tp 0: losses and other values mean nothing' log || fail "$(cat log)"
refused() { ! "$bin/pretrain_gpt" "${flags[@]}" --global-batch-size 8 "${@:2}" >log 2>&1 && grep -qF -- "$1" log || fail "${*:2}: $(tail -2 log)"; }
refused "expected less than --pretend-ranks, 8" --pretend-ranks 8 --pretend-rank 8
refused "--pretend-rank" --pretend-rank 1
refused "--save" --pretend-ranks 8 --save x
refused "--local-ranks" --pretend-ranks 8 --local-ranks 2
echo "ok: what is refused"
