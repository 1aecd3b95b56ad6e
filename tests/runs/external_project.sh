# Builds examples/external against an installed tree that was moved after its installation. The project finds the package and
# trains the same on one rank and on two, and the installed tools read its checkpoints.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh" "$1"

{ cmake --install "$bin/.." --prefix "$scratch/built" && mv built installed; } >install.log 2>&1 || fail "$(tail -5 install.log)"
started=$SECONDS
{ cmake -G Ninja -S "$here/../../examples/external" -B build -DCMAKE_PREFIX_PATH="$scratch/installed" -DCMAKE_BUILD_TYPE=Release &&
  cmake --build build; } >build.log 2>&1 || fail "$(tail -20 build.log)"
echo "ok: an external project builds in $((SECONDS - started)) s"

for ranks in 1 2; do
  "$here/../../tools/mpirun.sh" $ranks build/train "checkpoints$ranks" >"$ranks.log" 2>&1 || fail "$ranks ranks: $(tail -5 "$ranks.log")"
  installed/bin/ckpt verify "checkpoints$ranks/global_step10" >verify.log 2>&1 || fail "$(tail -5 verify.log)"
done
paste -d' ' <(grep ^step 1.log) <(grep ^step 2.log) | awk '
  {d = ($4 - $8) / $4; if (d < 0) d = -d; if (d > max) max = d; n += $2 == $6}
  END {printf "losses of 1 and 2 ranks: max relative difference %.1e over %d steps\n", max, n; exit !(n == 10 && max < 1e-5)}' ||
  fail "losses of one rank and two: $(cat 1.log 2.log)"
installed/bin/pretrain_gpt --help >help.log 2>&1 && grep -q -- --zero-stage help.log || fail "the installed pretrain_gpt: $(tail -5 help.log)"
echo "ok: it trains alike on one rank and two"
