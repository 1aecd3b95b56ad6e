#!/usr/bin/env bash
# Makes a venv with DeepSpeed, transformers, accelerate, peft, megatron-core and TensorBoard, and with the torch that
# tools/setup.sh has unpacked: install.sh VENV DEPS
#
# The torch wheel is linked with 3 GB of GPU libraries that nothing calls on a machine without a GPU. Compiled stand-ins, with
# empty functions of the same names, let it load. LD_LIBRARY_PATH must include VENV/gpu-stand-ins.
set -euo pipefail
venv=$(realpath -m "$1") deps=$2
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
pinned() { sed -n "s/^set($1 \(.*\))$/\1/p" "$repository/cmake/versions.cmake"; }
say() { printf '[interop] %s\n' "$*"; }

deepspeed=$(pinned ANYMESH_DEEPSPEED_VERSION) transformers=$(pinned ANYMESH_TRANSFORMERS_VERSION) torch=$(pinned ANYMESH_TORCH_VERSION)
accelerate=$(pinned ANYMESH_ACCELERATE_VERSION) peft=$(pinned ANYMESH_PEFT_VERSION)
megatron=$(pinned ANYMESH_MEGATRON_CORE_VERSION) tensorboard=$(pinned ANYMESH_TENSORBOARD_VERSION)
what="DeepSpeed $deepspeed, transformers $transformers, accelerate $accelerate, peft $peft"
what+=", megatron-core $megatron, TensorBoard $tensorboard and torch $torch"
stamp=$venv/$(tr -d ',' <<<"$what" | tr ' ' '-').done
mkdir -p "$(dirname "$venv")"
exec {lock}>"$venv.lock"
flock "$lock"  # one script installs, others wait
[[ ! -e $stamp ]] || exit 0
started=$SECONDS
headers=$(python3 -c 'import sysconfig; print(sysconfig.get_path("include"))')
[[ -e $deps/python/torch/lib/libtorch_python.so && -e $headers/Python.h ]] || "$repository/tools/setup.sh" --tests

python3 -m venv --clear "$venv" || {
  say "python3 -m venv failed: on Debian and Ubuntu it needs the package python3-venv"
  exit 1
}
# No __pycache__: PYTHONPYCACHEPREFIX names another folder wherever these packages are used.
pip() {
  "$venv/bin/pip" install --quiet --no-compile --no-warn-conflicts --disable-pip-version-check --timeout 20 --retries 2 "$@"
}
# The imports of torch and deepspeed; torch itself is there already. Only megatron-core's data code is used, which needs no
# more.
pip einops hjson huggingface_hub msgpack numpy packaging psutil py-cpuinfo pydantic tqdm filelock fsspec jinja2 networkx sympy \
  'setuptools<82' typing-extensions "transformers==$transformers" "tensorboard==$tensorboard" &
pip --no-deps "deepspeed==$deepspeed" "accelerate==$accelerate" "peft==$peft" "megatron-core==$megatron" && wait $! ||
  { say "cannot install $what: no way to PyPI? (pip's message is above)"; exit 1; }
(cd "$deps/python" && pwd) >"$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/torch.pth"

stand_ins=$venv/gpu-stand-ins
mkdir "$stand_ins"
cd "$deps/python/torch/lib"
libraries=(libtorch_cuda.so libtorch_nvshmem.so libtorch_python.so libc10_cuda.so)
# Symbols of the GPU libraries, as name or name@version. The CUDA runtime itself is there.
nm -D --undefined-only "${libraries[@]}" | awk '$NF ~ /^(cu|nv|nccl)/ && $NF !~ /@libcudart/ {print $NF}' | sort -u >"$stand_ins/names"
awk -F@ '{print "void " $1 "(void) { __builtin_trap(); }"}' "$stand_ins/names" >"$stand_ins/functions.c"
awk -F@ 'NF > 1 {of[$NF] = of[$NF] " " $1 ";"} END {for (v in of) print v " {" of[v] " };"}' "$stand_ins/names" >"$stand_ins/versions"
gcc -shared -fPIC -o "$stand_ins/libnone.so" "$stand_ins/functions.c" -Wl,--version-script="$stand_ins/versions"
for name in $(readelf -d "${libraries[@]}" | sed -n 's/.*(NEEDED).*\[\(lib\(cu\|nv\|nccl\).*\)\]/\1/p' | grep -v libcudart | sort -u); do
  ln -s libnone.so "$stand_ins/$name"
done

LD_LIBRARY_PATH=$stand_ins DS_ACCELERATOR=cpu PYTHONPYCACHEPREFIX=$venv/pycache PYTHONDONTWRITEBYTECODE='' "$venv/bin/python" \
    -c 'import torch, deepspeed, transformers, accelerate, peft' >"$venv/import.log" 2>&1 || {
  tail -5 "$venv/import.log"; say "torch, deepspeed, transformers, accelerate or peft does not import"
  exit 1
}
touch "$stamp"
say "installed $what in $((SECONDS - started)) s: $(du -sh "$venv" | cut -f1)"
