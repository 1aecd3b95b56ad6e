#!/usr/bin/env bash
# The record beside the loss CSV: it has what the run prints, goes on after a resume, and plot_figure and report read it.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

flags=(--train-iters 6 --lr-decay-iters 100 --save ckpt --save-interval 2 --load ckpt --report-save --report-memory --report-comm)
train 2,1,2,1 loss.csv "${flags[@]}" --exit-interval 4 >first.log || fail "$(tail -5 first.log)"
printf '{"event":"st' >>loss.jsonl  # as if a kill had cut off a line
train 2,2,1,1 loss.csv "${flags[@]}" --eval-iters 2 >loss.log || fail "$(tail -5 loss.log)"

python3 - <<'END' || fail "loss.jsonl"
import csv, json
events = []
for line in open("loss.jsonl"):
    try:
        events.append(json.loads(line))
    except json.JSONDecodeError:
        assert line in ("\n", '{"event":"st\n'), line
of = lambda name: [e for e in events if e["event"] == name]
log = open("loss.log").read()
first, second = of("start")
assert first["mesh"] == {"tp": 2, "pp": 1, "dp": 2, "ep": 1} and first["iteration"] == 0, first
assert second["mesh"] == {"tp": 2, "pp": 2, "dp": 1, "ep": 1} and second["iteration"] == 4, second
assert all(f"\n  {flag}\n" in log for flag in second["flags"]) and len(second["flags"]) > 20
assert all(f"{fact}\n" in log for fact in second["facts"])
assert f"model: {second['parameters']} parameters, at most {second['largest_rank']} on a rank" in log
rows = list(csv.DictReader(open("loss.csv")))
assert [(str(e["iteration"]), e["lm_loss"]) for e in of("step")] == [(r["iteration"], r["lm_loss"]) for r in rows]
assert [e["iteration"] for e in of("save")] == [2, 4, 6]
assert abs(of("save")[-1]["seconds"]["total"] * 1e3 - float(log.split("total ")[1].split()[0])) < 0.06
assert f"{of('validation')[-1]['lm_loss']:.9g}" in log
for row in of("communication")[-1]["rows"]:
    assert f"{row['group']:10} {row['verb']:14} {row['calls']:8} {row['bytes']:14}" in log, row
for row in of("memory")[-1]["rows"]:
    assert f"memory: {row['part']:34} {row['bytes'] / 2**20:12.3f}" in log, row
assert of("end")[-1]["steps"] == 2
END
for kind in mesh save; do "$bin/plot_figure" $kind --output $kind.svg loss.log >plot.log 2>&1 || fail "$(cat plot.log)"; done
grep -q '>step 6<' save.svg && grep -q 'tp 2 x pp 2 x dp 1' mesh.svg || fail "the figures are of another run"
"$bin/report" . >report.html || fail "report"
grep -q '= closed form' report.html || fail "no closed form in the report"
rm loss.jsonl
! "$bin/plot_figure" mesh --output mesh.svg loss.log 2>plot.log && grep -q 'run pretrain_gpt with --loss-csv loss.csv' plot.log ||
  fail "a log alone: $(cat plot.log)"

# Something else under the record's name is not replaced.
echo thesis >notes.jsonl
! train 1,1,1,0 notes.csv --train-iters 1 --lr-decay-iters 100 >log 2>&1 && grep -q 'notes.jsonl exists and is not the record of a run' log && [[ $(<notes.jsonl) == thesis ]] ||
  fail "$(tail -3 log)"
train 1,1,1,0 /dev/null --train-iters 1 --lr-decay-iters 100 >log 2>&1 || fail "$(tail -3 log)"
echo "ok: records"
