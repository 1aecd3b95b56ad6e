#!/usr/bin/env bash
# launch.sh PROGRAM ARGS...: starts a rank for each task of a SLURM allocation. Ranks follow the order of the nodes, so that a
# tensor parallel group, whose ranks are neighbours, is on one node.
#
#   LAUNCHER=srun|mpirun    default: srun, if it can start Open MPI's programs (srun --mpi=list has pmix)
#   NETWORK=10.0.0.0/16     for several networks: the one that nodes talk over, also as an interface, ib0
#   MPIRUN_FLAGS="..."      more of them
set -euo pipefail
nodes=${SLURM_JOB_NUM_NODES:?not in an allocation: sbatch examples/slurm/pretrain_gpt.sbatch} per_node=${SLURM_NTASKS_PER_NODE:?give --ntasks-per-node}
if [[ -z ${LAUNCHER:-} ]]; then
  LAUNCHER=mpirun
  if srun --mpi=list 2>&1 | grep -q pmix; then LAUNCHER=srun; fi
fi
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-${SLURM_CPUS_PER_TASK:-1}}
case $LAUNCHER in
  srun)
    if [[ ${NETWORK:-} ]]; then export OMPI_MCA_oob_tcp_if_include=$NETWORK OMPI_MCA_btl_tcp_if_include=$NETWORK; fi
    exec srun --mpi=pmix --nodes="$nodes" --ntasks-per-node="$per_node" --distribution=block --kill-on-bad-exit=1 "$@"
    ;;
  mpirun)
    hosts=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed "s/$/:$per_node/" | paste -sd,)
    network=()
    [[ -z ${NETWORK:-} ]] || network=(--mca oob_tcp_if_include "$NETWORK" --mca btl_tcp_if_include "$NETWORK")
    forward=(-x OMP_NUM_THREADS)
    for name in $(compgen -e | grep -E '^(NCCL|UCX|CUDA)_' || true); do forward+=(-x "$name"); done
    # shellcheck disable=SC2086
    exec mpirun -n $((nodes * per_node)) --host "$hosts" --map-by "ppr:$per_node:node" --bind-to none "${network[@]}" "${forward[@]}" \
      ${MPIRUN_FLAGS:-} "$@"
    ;;
  *) echo "launch.sh: LAUNCHER=$LAUNCHER is not srun or mpirun" >&2; exit 2 ;;
esac
