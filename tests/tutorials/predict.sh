#!/usr/bin/env bash
# "Predict first" on a lesson without runs: right, wrong and missing predictions, texts that are no number, and a page that is not
# current.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../tutorials"
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
lesson=$copy/tutorials/99_test
mkdir -p "$lesson" "$copy/bin"
cp ./*.sh predictions.py excerpts.py "$copy/tutorials"
for program in pretrain_gpt plot_loss plot_figure; do ln -s "$(type -P true)" "$copy/bin/$program"; done
cat >"$lesson/run.sh" <<'END'
source "$(dirname "${BASH_SOURCE[0]}")/../lesson.sh" "$@"
ask 0 "How many slots are idle?" 'cat "$out/idle.txt"'
ask 3% "How many bytes are moved?" moved_bytes
ask 0 "Which shape has a slice?" 'echo "64 x 128"'
moved_bytes() { echo 939528; }
echo "${IDLE:-6}" >"$out/idle.txt"
say "the lesson's output"
[[ -z ${FAILS:-} ]] || fail "$FAILS"
END
chmod +x "$lesson/run.sh"
cat >"$lesson/README.md" <<'END'
<!-- questions -->
<!-- /questions -->
<!-- answers -->
1. **0** of 22: `stages - 1` forwards
   and backwards.
2. **939,528**: see [the formula](x.md).
3. **[64, 128]**.
<!-- /answers -->
END
fail() { echo "FAIL: $*" >&2; exit 1; }
run() { "$lesson/run.sh" "$@" "$copy/bin" >"$copy/out" 2>&1; }  # the predictions are on standard input
predictions() { "$copy/tutorials/predictions.py" "$@" 99_test >"$copy/out" 2>&1; }
says() { grep -qxF -- "$1" "$copy/out" || fail "no line '$1' in: $(cat "$copy/out")"; }

run </dev/null || fail "the lesson: $(cat "$copy/out")"
says "the lesson's output"
! grep -q 'How many' "$copy/out" || fail "it asks without --predict"
cp "$copy/runs/99_test/output.txt" "$copy/plain.txt"
! predictions --check || fail "a page without the questions is current"
predictions || fail "predictions.py: $(cat "$copy/out")"
grep -qx '2. How many bytes are moved? (to 3 %)' "$lesson/README.md" || fail "the page has no question: $(cat "$lesson/README.md")"
predictions --check || fail "the page is not current: $(cat "$copy/out")"

run --predict <<<$'6\n950,000\n[64, 128]' || fail "right predictions: $(cat "$copy/out")"
says "  you said 6, right: 6 of 22: stages - 1 forwards and backwards."
says "  you said 950,000, right: 939528: see the formula."
says "  you said [64, 128], right: 64 x 128."
cmp "$copy/plain.txt" "$copy/runs/99_test/output.txt" || fail "--predict changes the lesson's output"
predictions --check || fail "predictions make the page out of date: $(cat "$copy/out")"
run --predict <<<$'5\nmany\n128 x 64' || fail "wrong predictions change the exit status"
says "  you said 5, it is 6 of 22: stages - 1 forwards and backwards."
says "  you said 'many', which is no number; it is 939528: see the formula."
says "  you said 128 x 64, it is 64 x 128."
run --predict <<<$'\n1000000' || fail "missing predictions change the exit status"
says "  it is 6 of 22: stages - 1 forwards and backwards."
says "  you said 1000000, it is 939528: see the formula."
says "  it is 64 x 128."

IDLE=7 run --predict <<<6 || fail "another answer: $(cat "$copy/out")"
says "  you said 6, it is 7"  # the page's reason is that of another number
! predictions --check || fail "the page says 6, the run 7, and nobody complains"
IDLE='' run </dev/null && predictions --check || fail "the page is no longer current: $(cat "$copy/out")"
sed -i 's/slots are/slots are not/' "$lesson/README.md"
! predictions --check || fail "the page asks for something else, and nobody complains"
! FAILS=broken run --predict <<<6 || fail "a failed lesson succeeds"
! grep -q 'it is' "$copy/out" || fail "a failed lesson has answers"
! (sed -i 's/^moved_bytes.*//' "$lesson/run.sh" && run </dev/null) || fail "a question without an answer is no error"
says "FAIL: 99_test: no answer to: How many bytes are moved? (to 3 %)"
echo "ok: predictions"
