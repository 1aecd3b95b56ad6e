#!/usr/bin/env bash
# --profile-step and --trace: a step's phases make up its time, the trace has every rank's phases, and neither flag changes the
# run.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

train 2,2,2,1 plain.csv --train-iters 4 --lr-decay-iters 100 --bf16 >plain.log || fail "$(tail -5 plain.log)"
train 2,2,2,1 profiled.csv --train-iters 4 --lr-decay-iters 100 --bf16 --profile-step 3 --trace trace.json >log || fail "$(tail -5 log)"
same plain.csv profiled.csv "a profiled run"

for phase in data forward backward gradients optimizer 'tp all_reduce' 'pp exchange' 'dp reduce_scatter' 'dp all_gather'; do
  grep -qE "^$phase +[0-9.]+ +[0-9.]+ +[0-9.]+ +[0-9.]+ +[0-9]+$" log || fail "no phase '$phase' in $(cat log)"
done
awk '/^phase, ms/ {on = 1; next} /^the step/ {step = $3; exit} on {sum += $(NF - 4)}
  END {off = sum / step - 1; exit !(step > 0 && off * off < 0.01 ^ 2)}' log || fail "phases do not add up: $(cat log)"
grep -qE '^aten::[a-z_]+ +[0-9.]+ +[0-9.]+ +[0-9]+$' log || fail "no operators in $(cat log)"

python3 - <<'END' || fail "trace.json"
import json
events = json.load(open("trace.json"))["traceEvents"]
spans = [e for e in events if e["ph"] == "X"]
assert {e["pid"] for e in spans} == set(range(8)), "not every rank"
for rank in range(8):
    for name in ("forward", "backward"):
        numbers = [e["args"]["micro_batch"] for e in spans if e["pid"] == rank and e["name"] == name]
        assert numbers == list(range(6)), numbers
    assert all(e["dur"] >= 0 for e in spans)
assert any(e["name"].startswith("aten::") for e in spans)
verbs = [e for e in spans if e["cat"] == "phase" and " " in e["name"] and not e["name"].endswith(" wait")]
assert all(e["args"]["Input Dims"] and e["args"]["Input type"] for e in verbs if "exchange" not in e["name"]), "verbs without payloads"
assert any(e.get("args", {}).get("Input type") == ["c10::BFloat16"] for e in verbs), "no bf16 payload"
assert all(len(e["args"]["Input Dims"]) == 2 for e in spans if e["name"] == "aten::mm"), "products without shapes"
END
echo "ok: a step of 8 ranks, $(wc -c <trace.json) bytes of trace"

# A disk that is full takes away neither the run nor the earlier trace.
before=$(sha256sum trace.json)
(ulimit -f 8; train 1,1,1,0 full.csv --train-iters 2 --lr-decay-iters 100 --profile-step 2 --trace trace.json 2>&1) | cat >full.log
grep -q 'WARNING: .*--trace trace.json: cannot write it: .*File too large' full.log || fail "$(tail -5 full.log)"
grep -q '^done: 2 steps' full.log && [[ $(sha256sum trace.json) == "$before" ]] || fail "the trace is lost: $(tail -5 full.log)"
[[ -z $(find . -name '*.tmp*') ]] || fail "left: $(find . -name '*.tmp*')"
echo "ok: a trace that does not fit leaves the earlier one"
