#!/usr/bin/env bash
# tools/mpirun.sh RANKS PROGRAM ARGS...: mpirun as a laptop, a container and CI want it.
# As root it needs leave; more ranks than cores need --oversubscribe and should yield while they wait; ranks that share
# cores take one thread each. All are on this machine, so shared memory is the one way between them, and ranks that look for no
# other start sooner.
set -euo pipefail
if (($# < 2)) || [[ ! $1 =~ ^[1-9][0-9]*$ ]]; then
  echo "usage: tools/mpirun.sh RANKS PROGRAM ARGS..., for example: tools/mpirun.sh 2 build/release/bin/pretrain_gpt --help" >&2
  exit 2
fi
ranks=$1
shift
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
unset ANYMESH_TERMINAL
[[ ! -t 1 ]] || export ANYMESH_TERMINAL=1  # for framework/progress_bar.h
exec mpirun -n "$ranks" --oversubscribe --bind-to none --mca mpi_yield_when_idle 1 \
  --mca pml ob1 --mca btl self,vader --mca btl_vader_single_copy_mechanism none "$@"
