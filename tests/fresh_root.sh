#!/usr/bin/env bash
# Runs the README's commands as on a new machine: an empty Debian and a fresh clone. Reports the time, downloads and disk space
# of each. Needs root and debootstrap. Ends at the first command that fails.
#
#   tests/fresh_root.sh FOLDER [COMMAND...]     default: tutorials/quickstart.sh tests/run.sh
#
# FOLDER must not exist. It is left behind for inspection; remove it with rm -r. SUITE=bookworm is the release, MIRROR its
# source. If the network needs more, COPY="FILE..." copies files of this machine to the same path there. PIP_CERT and proxies
# are passed on.
set -euo pipefail
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
root=$(realpath -m "${1:?FOLDER}")
shift
(($# > 0)) || set -- tutorials/quickstart.sh tests/run.sh
[[ ! -e $root ]] || { echo "fresh_root: $root exists, expected a folder to make" >&2; exit 2; }

say() { printf '[fresh root] %s\n' "$*"; }
# MiB of folders of the new root; a missing one counts as zero.
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
  # The root gets a mount of its own, as a real root has.
  unshare --mount --pid --fork bash -c '
    mount --bind "$0" "$0" && mount -t proc proc "$0/proc" && mount --rbind /dev "$0/dev" && mount --rbind /sys "$0/sys" &&
      exec chroot "$@"' "$root" "$root" env -i "${kept[@]}" bash -c "cd /root/anymesh && $command"
  say "$command: $((SECONDS - started)) s; $(mib .) MiB on disk, of which .deps $(mib root/anymesh/.deps), build $(mib root/anymesh/build)," \
    "ccache's $(mib root/.cache/ccache), apt's $(mib var/cache/apt)"
done
