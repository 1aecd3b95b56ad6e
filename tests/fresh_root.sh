#!/usr/bin/env bash
# What somebody with a new machine meets: a Debian that has nothing yet, a fresh clone, and the README's commands. Says what
# each took in time, downloads and disk. As root, where debootstrap is installed; ends at the first command that fails.
#
#   tests/fresh_root.sh FOLDER [COMMAND...]     default: tutorials/quickstart.sh tests/run.sh
#
# FOLDER must not exist, and is left for a look: rm -r it. SUITE=bookworm is the release, MIRROR where it comes from. Where
# the network wants more, COPY="FILE..." copies files of this machine to the same path there, and PIP_CERT and proxies are
# passed on.
set -euo pipefail
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
root=$(realpath -m "${1:?FOLDER}")
shift
(($# > 0)) || set -- tutorials/quickstart.sh tests/run.sh
[[ ! -e $root ]] || { echo "fresh_root: $root exists, expected a folder to make" >&2; exit 2; }

say() { printf '[fresh root] %s\n' "$*"; }
# MiB of folders of the new root; what is not there has none.
mib() { (cd "$root" && { du -xsm --total "$@" 2>/dev/null || true; } | tail -1 | cut -f1); }

say "a minimal Debian ${SUITE:=bookworm}, and a clone of $(git -C "$repository" log -1 --format=%h)"
debootstrap --variant=minbase "$SUITE" "$root" "${MIRROR:-http://deb.debian.org/debian}" >"$root.log" 2>&1 || { tail -5 "$root.log" >&2; exit 1; }
rm "$root.log" "$root"/var/cache/apt/archives/*.deb
# A host that cannot find its own name costs every mpirun 5 s.
for file in /etc/hosts /etc/resolv.conf ${COPY:-}; do install -D -m 644 "$file" "$root$file"; done
git clone --quiet --no-local "$repository" "$root/root/anymesh"

say "$(nproc) cores, $(mib .) MiB on disk"
kept=(PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb)
for name in PIP_CERT http_proxy https_proxy no_proxy; do [[ -z ${!name:-} ]] || kept+=("$name=${!name}"); done
for command in "$@"; do
  say "$command"
  started=$SECONDS
  # A mount of its own, as a real root is.
  unshare --mount --pid --fork bash -c '
    mount --bind "$0" "$0" && mount -t proc proc "$0/proc" && mount --rbind /dev "$0/dev" && mount --rbind /sys "$0/sys" &&
      exec chroot "$@"' "$root" "$root" env -i "${kept[@]}" bash -c "cd /root/anymesh && $command"
  say "$command: $((SECONDS - started)) s; $(mib .) MiB on disk, of which .deps $(mib root/anymesh/.deps), build $(mib root/anymesh/build)," \
    "ccache's $(mib root/.cache/ccache), apt's $(mib var/cache/apt)"
done
