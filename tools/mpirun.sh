#!/usr/bin/env bash
# tools/mpirun.sh RANKS PROGRAM ARGS...: runs mpirun with settings for a laptop, a container or CI.
# It allows root and more ranks than cores (--oversubscribe), which should yield while they wait. Ranks that share cores take
# one thread each. All ranks are on this machine, so they use only shared memory. They start sooner, because they look for no
# other transport.
set -euo pipefail
if (($# < 2)) || [[ ! $1 =~ ^[1-9][0-9]*$ ]]; then
  echo "usage: tools/mpirun.sh RANKS PROGRAM ARGS..., for example: tools/mpirun.sh 2 build/release/bin/pretrain_gpt --help" >&2
  exit 2
fi
ranks=$1
shift
# Open MPI would say this in words of its own, many lines of them.
session=${TMPDIR:-/tmp}
if [[ ! -w $session ]]; then
  echo "tools/mpirun.sh: $session cannot be written, and Open MPI keeps its session there; set TMPDIR to a folder that can" >&2
  exit 2
fi
shared=$(df --output=avail -m /dev/shm 2>/dev/null | tail -1 || true)
if [[ $shared ]] && ((shared = shared, shared < 5 * ranks)); then
  echo "tools/mpirun.sh: /dev/shm has $shared MiB free, and $ranks ranks need $((5 * ranks)); start a container with" \
    "--shm-size=1g, or use --local-ranks $ranks, which needs neither /dev/shm nor mpirun" >&2
  exit 2
fi
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
unset ANYMESH_TERMINAL
[[ ! -t 1 ]] || export ANYMESH_TERMINAL=1  # for framework/util/terminal.h
exec mpirun -n "$ranks" --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 \
  --mca pml ob1 --mca btl self,vader --mca btl_vader_single_copy_mechanism none "$@"
