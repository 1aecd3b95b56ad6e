#!/usr/bin/env bash
# Builds wheels of the Python package for this machine's Pythons, 3.9 and later, on x86-64 and on aarch64. One compiler for both
# (zig's clang, a wheel of PyPI) aims at glibc 2.28 of 2018, so that the wheels run on older systems than this one.
#
#   tools/python/wheels.sh [FOLDER]              default: build/wheels
#   PYTHONS="python3.9 /opt/python3.13/bin/python3" ARCHES=x86_64 tools/python/wheels.sh
#
# Needs nlohmann-json3-dev, libcxxopts-dev, libdeflate-dev, python3-venv, binutils, and PyPI. From Python 3.12 on, one wheel serves all.
# For aarch64 it downloads Debian's libdeflate-dev. docs/releasing.md says what to do with the wheels.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
pinned() { sed -n "s/^set($1 \(.*\))$/\1/p" cmake/versions.cmake; }
say() { printf '[wheels] %s\n' "$*"; }
out=$(realpath -m "${1:-build/wheels}") glibc=2.28
mkdir -p "$out"

mapfile -t pythons < <(tools/python/pythons.sh)
[[ -z ${PYTHONS:-} ]] || read -ra pythons <<<"$PYTHONS"
((${#pythons[@]} > 0)) || { echo "wheels.sh: no Python 3.9 or later here" >&2; exit 1; }

# libdeflate of Debian's package for another architecture: prints its folder.
libdeflate() { # DEBIAN'S_ARCHITECTURE
  local folder=$PWD/build/libdeflate-$1 mirror=${MIRROR:-http://deb.debian.org/debian} path
  if [[ ! -e $folder/usr ]]; then
    mkdir -p "$folder"
    path=$(python3 -c 'import lzma, re, sys, urllib.request as u
index = lzma.decompress(u.urlopen(sys.argv[1] + "/dists/bookworm/main/binary-" + sys.argv[2] + "/Packages.xz").read()).decode()
print(re.search(r"^Package: libdeflate-dev\n(?:.+\n)*?Filename: (.*)$", index, re.M).group(1))' "$mirror" "$1")
    python3 -c 'import sys, urllib.request; urllib.request.urlretrieve(*sys.argv[1:])' "$mirror/$path" "$folder/deb"
    dpkg-deb -x "$folder/deb" "$folder"
  fi
  echo "$folder/usr"
}

zig=$PWD/build/wheels-zig  # one for all Pythons, which keeps what it has compiled
[[ -x $zig/bin/pip ]] || "${pythons[-1]}" -m venv "$zig"
"$zig/bin/pip" install --quiet --disable-pip-version-check "ziglang==$(pinned ANYMESH_ZIG_VERSION)"

for arch in ${ARCHES:-x86_64 aarch64}; do
  tools=$PWD/build/wheels-$arch
  mkdir -p "$tools"
  for language in cc c++; do
    printf '#!/bin/sh\nexec %s -m ziglang %s -target %s-linux-gnu.%s "$@"\n' "$zig/bin/python" $language "$arch" $glibc >"$tools/$language"
    chmod +x "$tools/$language"
  done
  abi3=''
  for python in "${pythons[@]}"; do
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    [[ ! $abi3 || $(sort -V <<<"3.12"$'\n'"$version" | head -1) != 3.12 ]] || continue  # served
    venv=$PWD/build/wheels-venv-$version started=$SECONDS
    [[ -x $venv/bin/pip ]] || "$python" -m venv "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check ninja wheel \
      "scikit-build-core==$(pinned ANYMESH_SCIKIT_BUILD_CORE_VERSION)" "nanobind==$(pinned ANYMESH_NANOBIND_VERSION)"
    suffix=$("$python" -c 'import sysconfig; print(sysconfig.get_config_var("EXT_SUFFIX"))')
    deflate=/usr
    [[ $arch == x86_64 ]] || deflate=$(libdeflate arm64)
    settings=("build-dir=build/python-$arch" "cmake.args=-GNinja;-DCMAKE_SYSTEM_NAME=Linux;-DCMAKE_SYSTEM_PROCESSOR=$arch"
              "cmake.define.CMAKE_C_COMPILER=$tools/cc" "cmake.define.CMAKE_CXX_COMPILER=$tools/c++"
              "cmake.define.LIBDEFLATE_INCLUDE_DIR=$deflate/include"
              "cmake.define.LIBDEFLATE_LIBRARY=$deflate/lib/$arch-linux-gnu/libdeflate.a")
    rm -rf "$tools/out"
    SETUPTOOLS_EXT_SUFFIX=${suffix/x86_64/$arch} _PYTHON_HOST_PLATFORM=linux-$arch "$venv/bin/pip" wheel --quiet \
      --disable-pip-version-check --no-build-isolation --no-deps -w "$tools/out" "${settings[@]/#/--config-settings=}" .
    unzip -q -o "$tools"/out/*.whl 'anymesh/_core*.so' -d "$tools/out"
    module=$(basename "$tools"/out/anymesh/_core*.so)
    [[ $module == *"$arch"* || $module == _core.abi3.so ]] || { echo "wheels.sh: $module is not named for $arch" >&2; exit 1; }
    # The newest symbol of the C library that it asks for says which systems have it.
    newest=$(readelf --version-info "$tools"/out/anymesh/_core*.so | grep -o 'GLIBC_[0-9.]*' | sort -Vu | tail -1)
    [[ $(printf '%s\n' "$newest" "GLIBC_$glibc" | sort -V | tail -1) == "GLIBC_$glibc" ]] || { echo "wheels.sh: it wants $newest" >&2; exit 1; }
    "$venv/bin/python" -m wheel tags --remove --platform-tag "manylinux_${glibc/./_}_$arch" "$tools"/out/*.whl >/dev/null
    wheel=$(echo "$tools"/out/*.whl)
    mv "$wheel" "$out/"
    [[ $wheel != *abi3* ]] || abi3=yes
    say "$(basename "$wheel"): $(stat -c %s "$out/$(basename "$wheel")") bytes, $((SECONDS - started)) s"
  done
done
