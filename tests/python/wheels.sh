#!/usr/bin/env bash
# Installs each wheel of this processor into an empty venv of each Python that it is for, without a compiler in reach, and uses
# every command and function. Says how long the installation took.
#
#   tests/python/wheels.sh [FOLDER]              default: build/wheels, of tools/python/wheels.sh
set -euo pipefail
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
wheels=$(realpath "${1:-$repository/build/wheels}")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
tar xf "$repository/tests/fixtures/deepspeed/trip/trip.tar.xz"
mkdir bin
ln -s /bin/{sh,bash} bin/
used=0
for python in $("$repository/tools/python/pythons.sh"); do
  tag=$("$python" -c 'import sys; print("cp%d%d" % sys.version_info[:2])')
  wheel=$(compgen -G "$wheels/anymesh-*-$tag-$tag-*$(uname -m).whl" || compgen -G "$wheels/anymesh-*-abi3-*$(uname -m).whl")
  "$python" -m venv venv
  PATH=$scratch/bin venv/bin/python -m pip install --quiet --disable-pip-version-check numpy
  started=$(date +%s.%N)
  PATH=$scratch/bin venv/bin/python -m pip install --quiet --disable-pip-version-check --no-index "$wheel"
  took=$(awk -v a="$started" -v b="$(date +%s.%N)" 'BEGIN {printf "%.1f", b - a}')
  rm -rf out && mkdir out
  run() { PATH=$scratch/bin venv/bin/"$@" >log 2>&1 || { cat log; echo "FAIL: $* on $("$python" -V)" >&2; exit 1; }; }
  run anymesh reshard dp4 out/dp3 --dp 3
  run anymesh to-universal dp4 out/universal
  run ds_to_universal --input_folder dp4 --output_folder out/universal2
  run anymesh diff out/universal out/dp3
  run anymesh to-fp32 out/dp3 out/weights --safe_serialization
  run anymesh verify out/dp3
  run anymesh inspect out/weights
  run anymesh hf --help
  run ds_reshard --input_folder dp4 --output_folder out/dp2/t --target dp=2
  run python -c 'import anymesh
c = anymesh.open("dp4")
assert c.mesh.dp == 4 and all(p.numpy().shape == p.shape for p in map(c.__getitem__, c))
assert len(anymesh.state_dict("dp4")) >= len(c) - 1 and anymesh.diff("dp4", anymesh.reshard("dp4", "out/api", dp=5)) and anymesh.verify("out/api")
anymesh.to_universal("dp4", "out/u3"), anymesh.to_fp32("dp4", "out/w3"), help(anymesh)'
  echo "$("$python" -V): $(basename "$wheel") installed in $took s, and works"
  used=$((used + 1))
  rm -rf venv
done
((used > 0))
