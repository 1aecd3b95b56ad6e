#!/usr/bin/env bash
# quarter_hour.sh with stand-ins for the GPU, the trainer and mpirun: phases and cases that fail, hang or are missing stop no other,
# each leaves a line of JSON, and the figures get into a page.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
kit=$(mktemp -d "${TMPDIR:-/tmp}/quarter-hour-test.XXXXXX")
trap 'rm -rf "$kit"' EXIT
fail() { echo "FAIL: $*" >&2; exit 1; }
mkdir -p "$kit"/{bin,path,tests/gpu,tools,benchmarks/gpu,cpu-losses}
cp "$here"/quarter_hour.{sh,py} "$kit/tests/gpu/"
echo "export PATH=$kit/path:\$PATH" >"$kit/env.sh"

# stand_in FILE: a program from standard input
stand_in() { { echo '#!/usr/bin/env bash'; cat; } >"$1" && chmod +x "$1"; }
stand_in "$kit/path/nvidia-smi" <<'END'
[[ $* == *--loop-ms* ]] || { echo "stand-in"; exit; }
while sleep 0.05; do echo "2026/01/01 00:00:00.000, 1500, 600.5, 60, 1000"; done
END
stand_in "$kit/tools/mpirun.sh" <<'END'
ranks=$1
shift
for ((rank = 0; rank < ranks; ++rank)); do OMPI_COMM_WORLD_RANK=$rank "$@" & done
status=0
for ((rank = 0; rank < ranks; ++rank)); do
  wait -n || { status=$?; break; }
done
((status == 0)) || kill -KILL $(jobs -p) 2>/dev/null
exit $status
END
stand_in "$kit/bin/gpu_mpi_test" <<'END'
echo "[       OK ] Gpu.One (1 ms)"
echo "[  FAILED  ] Gpu.Two (1 ms)"
exit 1
END
stand_in "$kit/benchmarks/gpu/run.sh" <<'END'
printf '| size | | ms |\n|---|---|---|\n| 1.3B | ours | 100 |\n| | compiled | 120 |\n'
END
stand_in "$kit/bin/pretrain_gpt" <<'END'
all="$*" csv="" trace=""
[[ $all != --version ]] || { echo "pretrain_gpt 1"; exit; }
while (($# > 0)); do
  case $1 in
    --loss-csv) csv=$2 ;;
    --trace) trace=$2 ;;
  esac
  shift
done
echo "iter 1/6  loss 2"
[[ $all != *"--num-experts 128"* ]] || sleep 1
[[ $all != *"--window-size"* ]] || sleep 1000
[[ $all != *"--zero-stage 1"* ]] || { echo "cannot: ZeRO \"1\""; exit 3; }
if [[ $all == *"--train-iters 1000000"* ]]; then
  for ((i = 0; i < 20; ++i)); do sleep 0.1; done
  echo "NCCL: rank 0 of the group dp: all_reduce: waited 0.1 s"
  exit 1
fi
if [[ ${OMPI_COMM_WORLD_RANK:-0} == 0 ]]; then
  { echo "iteration,samples,lm_loss,rate,norm,scale,tokens,elapsed_ms"; for i in 1 2 3 4 5 6; do echo "$i,1,2.5,1,1,1,1,${i}0.5"; done; } >"$csv"
  [[ -z $trace ]] || cat >"$trace" <<'JSON'
{"traceEvents": [
{"name":"gemm","cat":"kernel","ph":"X","ts":0,"dur":100,"pid":0,"tid":1},
{"name":"ncclDevKernel","cat":"kernel","ph":"X","ts":50,"dur":100,"pid":0,"tid":1},
{"name":"flash_fwd","cat":"kernel","ph":"X","ts":200,"dur":100,"pid":0,"tid":1}
]}
JSON
fi
echo "dp         reduce_scatter        2        2035200             2        2035200"
echo "done: 6 steps, 0.0278 s per step, peak memory per rank 149.5 MiB"
END
for pair in tp2-sp pp2 pp2-zb-h1 dp2-overlap dp2-zero{0,1,2,3} ep2-zero{1,3} tp2-whole-experts; do
  { echo "iteration,samples,lm_loss"; for i in 1 2 3 4 5 6; do echo "$i,1,2.51"; done; } >"$kit/cpu-losses/$pair.csv"  # 0.4 % off
done
sed 's/2.51/3/' "$kit/cpu-losses/pp2.csv" >"$kit/cpu-losses/pp2-tied.csv"

(($("$kit/tests/gpu/quarter_hour.sh" --dry-run | grep -c 'at most') == 10)) || fail "phases of --dry-run"
cd "$kit"
OUT=$kit/out LIMIT=120 tests/gpu/quarter_hour.sh versions kernels pairs stopped peers large lone overlap memcheck >log 2>&1 || fail "$(tail -5 log)"
OUT=$kit/slow LIMIT=3 tests/gpu/quarter_hour.sh attention kernels >slow.log 2>&1 || fail "$(tail -5 slow.log)"
OUT=$kit/late MOST=0 tests/gpu/quarter_hour.sh kernels >late.log 2>&1 || fail "$(tail -5 late.log)"
if tests/gpu/quarter_hour.sh nothing >refused.log 2>&1 || ! grep -q 'nothing is none of versions' refused.log; then fail "$(cat refused.log)"; fi

printf 'before\n%s\nold\n%s\nafter\n' '<!-- quarter_hour.py writes from here -->' '<!-- to here -->' >page.md
python3 tests/gpu/quarter_hour.py table out/results.jsonl page.md >table
cp page.md once.md
python3 tests/gpu/quarter_hour.py table out/results.jsonl page.md >/dev/null
cmp page.md once.md || fail "the second table is not the first"
if python3 tests/gpu/quarter_hour.py table out/results.jsonl table 2>marks.log; then fail "a page without marks"; fi

python3 - <<'END'
import json

def rows(folder):
    return {row["phase"]: row for row in map(json.loads, open(f"{folder}/results.jsonl"))}

def figures(row):
    return {figure.pop("case"): figure for figure in row["figures"]}

out, slow = rows("out"), rows("slow")
status = {phase: row["status"] for phase, row in out.items()}
assert status == {"versions": "passed", "kernels": "failed", "pairs": "failed", "stopped": "passed", "peers": "passed", "large": "passed",
                  "lone": "failed", "overlap": "passed", "memcheck": "skipped"}, status
tests = figures(out["kernels"])["gpu_mpi_test"]
assert tests["passed"] >= 1 and tests["not_passed"] >= 1, tests  # the first rank that fails ends the other
pairs = figures(out["pairs"])
assert len(pairs) == 12 and {name for name, row in pairs.items() if "status" in row} == {"dp2-zero1", "ep2-zero1", "pp2-tied"}, pairs
assert pairs["tp2-sp"]["steps"] == 6 and abs(pairs["tp2-sp"]["difference"] - 0.01 / 2.51) < 1e-4, pairs
assert any('cannot: ZeRO "1"' in line for line in out["pairs"]["log"]), out["pairs"]["log"]
stopped = figures(out["stopped"])["stopped"]
assert stopped["exit"] == 1 and "waited" in stopped["says"], stopped
assert len(out["peers"]["figures"]) == 2 and "ours 100" in out["peers"]["figures"][0]["row"], out["peers"]
large = figures(out["large"])
assert len(large) == 5 and (large["128-experts"]["ms"], large["128-experts"]["mib"]) == (40.5, 1000), large
lone = figures(out["lone"])
assert lone["dp64-zero1"]["status"] == "failed" and lone["dp64-zero3"]["launches"] == 3 and lone["dp64-zero3"]["idle_ms"] == 0.05, lone
assert lone["dp64-zero3"]["bytes"] == 2035200, lone
assert figures(out["overlap"])["dp2-zero2"]["nccl_hidden"] == 0.5, out["overlap"]
assert out["pairs"]["mhz"] == [1500, 1500] and out["pairs"]["watts"] == [600.5, 600.5], out["pairs"]
assert slow["attention"]["status"] == "timeout" and slow["kernels"]["status"] == "failed", slow
assert slow["attention"]["figures"][0]["kernels"] == "flash_fwd", slow["attention"]
assert rows("late")["kernels"]["status"] == "no time left"
page = open("page.md").read()
assert page.startswith("before\n<!--") and page.endswith("-->\nafter\n") and "old" not in page and "| `lone` | | | 1500 to 1500 |" in page, page
END
echo "ok: $(wc -l <out/results.jsonl) phases, $(grep -c '^|' table) rows"
