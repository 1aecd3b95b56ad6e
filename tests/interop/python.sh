#!/usr/bin/env bash
# The Python package beside real torch and DeepSpeed (see python.py), and the trip of docs/python.md: DeepSpeed saves on 4 ranks,
# `anymesh reshard` cuts the checkpoint for 3, and DeepSpeed goes on there. Installs the same packages as run.sh, once.
#
#   tests/interop/python.sh [FOLDER_OF_EXECUTABLES]       default: build/release/bin, unused
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

install
pinned() { sed -n "s/^set($1 \(.*\))$/\1/p" "$repository/cmake/versions.cmake"; }
(cd "$repository" && "$venv/bin/pip" install --quiet --disable-pip-version-check safetensors \
  "scikit-build-core==$(pinned ANYMESH_SCIKIT_BUILD_CORE_VERSION)" "nanobind==$(pinned ANYMESH_NANOBIND_VERSION)" &&
  "$venv/bin/pip" install --quiet --disable-pip-version-check --no-build-isolation --no-deps .)

for archive in "$repository"/tests/fixtures/deepspeed/z*.tar.xz; do tar xf "$archive"; done
compare 300 python.py z*

script=$repository/tutorials/17_stay_with_deepspeed/train.py
on() { with_packages 300 "${python[@]}" "$repository/tests/interop/launch.py" "$1" "$script" loop "${@:2}" >"$1.log" 2>&1 || fail "$(tail -5 "$1.log")"; }
on 4 whole.csv --save ckpt
"$venv/bin/anymesh" reshard ckpt ckpt3 --dp 3
on 3 resumed.csv --load ckpt3
awk -F, 'NR == FNR {whole[$1] = $3; next}
  FNR > 1 {off = ($3 - whole[$1]) / whole[$1]; if (off < 0) off = -off; if (off > most) most = off; if ($1 == 11) first = off; ++rows}
  END {printf "steps 11 to 20 on 3 ranks: the first loss is %.1e off the run that went on on 4, all at most %.1e\n", first, most
       exit !(rows == 10 && first <= 1e-6 && most <= 2e-3)}' whole.csv resumed.csv || fail "losses differ"
