#!/usr/bin/env bash
# Packs what a GPU machine needs into one folder of at most 60 MiB: programs, scripts, Open MPI's run-time and small libraries.
# That machine needs the driver, Python and PyTorch with LibTorch's version (cmake/versions.cmake), and no network.
#
#   tests/gpu/pack.sh FOLDER [BUILD]      BUILD: the preset `cuda`'s, build/cuda; FOLDER is replaced if it is such a folder
#   FOLDER/tests/gpu/run.sh               there; or FOLDER/tests/gpu/quarter_hour.sh, if there are 15 minutes
set -euo pipefail
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
folder=$(realpath -m "${1:?FOLDER}") bin=$(realpath "${2:-$repository/build/cuda}")/bin
mark=$folder/env.sh
if [[ -e $folder && ! -e $mark ]]; then echo "pack.sh: $folder exists and is no kit" >&2; exit 2; fi
rm -rf "$folder"
mkdir -p "$folder"/{bin,lib,openmpi/{bin,lib,etc,share}}

programs=(pretrain_gpt gpu_mpi_test gpu_kernels ds_to_universal plot_loss)
for program in "${programs[@]}"; do
  [[ -x $bin/$program ]] || { echo "pack.sh: no $bin/$program; cmake --preset cuda && cmake --build --preset cuda" >&2; exit 2; }
  strip -o "$folder/bin/$program" "$bin/$program"
done

# Open MPI finds its folders below OPAL_PREFIX.
mpi=$(dirname "$(ldd "$bin/pretrain_gpt" | awk '/libmpi.so/ {print $3}')")
mkdir -p "$folder/openmpi/lib/openmpi"
cp -L "$mpi"/openmpi/lib/openmpi3/*.so "$folder/openmpi/lib/openmpi"
rm -f "$folder"/openmpi/lib/openmpi/mca_*_{ofi,psm,psm2,ucx,openib,slurm,flux,gridengine}.so  # for clusters
[[ ! -d $mpi/pmix2/lib/pmix ]] || cp -rL "$mpi/pmix2/lib/pmix" "$folder/openmpi/lib/"
cp -L "$(command -v orterun)" "$folder/openmpi/bin/mpirun"
cp -L "$(command -v orted)" "$folder/openmpi/bin/"  # for a process that no mpirun started
cp -rL /usr/share/openmpi "$folder/openmpi/share/"
cp -rL /etc/openmpi "$folder/openmpi/etc/"

# Every library that a program or plugin needs, but those of the C library, LibTorch, CUDA and the driver.
{ for file in "$bin"/pretrain_gpt "$bin"/ds_to_universal "$folder"/openmpi/bin/mpirun "$folder"/openmpi/lib/{openmpi,pmix}/*.so; do
    ldd "$file" 2>/dev/null || true
  done; } | awk '$2 == "=>" && $3 ~ /^\// {print $3}' | sort -u |
  grep -Ev '/(libc|libm|libdl|librt|libpthread|libutil|libresolv|libstdc\+\+|libgcc_s|ld-linux[^/]*)\.so|/libtorch|/libc10|/libgomp|/libcu|/libnv|/libnccl|/nvidia/|/cuda' |
  while read -r library; do cp -L "$library" "$folder/lib/"; done

cd "$repository"
BIN=$bin tests/gpu/quarter_hour.sh --cpu-losses "$folder/cpu-losses"
cp --parents tests/gpu/{run,quarter_hour}.sh tests/gpu/quarter_hour.py tests/runs/common.sh tools/mpirun.sh benchmarks/common.sh benchmarks/gpu/run.sh benchmarks/train/*.sh \
  benchmarks/train/*.py cmake/versions.cmake "$folder"
git log -1 --format=%H >"$folder/commit"
cat >"$mark" <<'END'
# Sourced by the scripts of a kit: where its parts are, and where this machine's PyTorch is.
kit=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export OPAL_PREFIX=$kit/openmpi OPAL_SYSCONFDIR=$kit/openmpi/etc/openmpi OPAL_PKGDATADIR=$kit/openmpi/share/openmpi
export OPAL_PKGLIBDIR=$kit/openmpi/lib/openmpi PMIX_PKGLIBDIR=$kit/openmpi/lib/pmix
export PATH=$kit/openmpi/bin:$PATH
torch=$("${PYTHON:-python3}" -c 'import importlib.util; print(importlib.util.find_spec("torch").submodule_search_locations[0])') || {
  echo "no PyTorch for ${PYTHON:-python3}; PYTHON=... names another" >&2; exit 2; }
export LD_LIBRARY_PATH=$kit/lib:$torch/lib$(printf ':%s' "$torch"/../nvidia/*/lib)${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
END
size=$(du -sm "$folder" | cut -f1)
echo "$folder: $size MiB"
((size <= 60)) || { echo "pack.sh: more than 60 MiB" >&2; exit 1; }
