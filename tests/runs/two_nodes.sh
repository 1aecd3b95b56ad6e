#!/usr/bin/env bash
# Two nodes on one machine: network namespaces with their own address and host name. mpirun reaches them as it would by ssh.
# examples/slurm/launch.sh starts the ranks there, in order. Meshes that cross nodes have the losses of one node, where ranks are threads, bit for
# bit.
# Nodes without a shared file system each keep their own files, and a load that misses a file says which host has it.
# Needs root and `ip`; it is skipped otherwise.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
warm_start
net=anymesh$$
ip netns add "${net}a" 2>/dev/null || { echo "SKIPPED: no leave to make network namespaces"; exit 77; }
trap 'ip netns delete ${net}a; ip netns delete ${net}b; rm -rf "$scratch"' EXIT
ip netns add "${net}b"
ip link add veth0 netns "${net}a" type veth peer name veth0 netns "${net}b"
for node in a:1 b:2; do
  ip -n "$net${node%:*}" address add "10.77.0.${node#*:}/24" dev veth0
  ip -n "$net${node%:*}" link set veth0 up
  ip -n "$net${node%:*}" link set lo up
done

# mpirun runs this in place of ssh: HOST COMMAND. If the second node has a disk, it is not the first's.
mkdir disk
cat >ssh <<END
#!/usr/bin/env bash
while [[ \$1 == -* ]]; do shift; done
shift
exec ip netns exec ${net}b unshare --uts --mount bash -c "
  touch $scratch/busy
  hostname second
  [[ ! -e $scratch/own-disks ]] || mount -t tmpfs -o size=\\\$(cat $scratch/own-disks) tmpfs $scratch/disk
  [[ ! -e $scratch/second.tar ]] || tar -xf $scratch/second.tar -C $scratch/disk
  \$*
  status=\\\$?
  [[ ! -e $scratch/own-disks ]] || tar -cf $scratch/second.tar -C $scratch/disk .
  rm $scratch/busy
  exit \\\$status"
END
printf '#!/bin/sh\nprintf "10.77.0.1\\n10.77.0.2\\n"\n' >scontrol
chmod +x ssh scontrol
export PATH=$scratch:$PATH OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# Transports of two nodes without special hardware: shared memory (vader) and TCP.
export SLURM_JOB_NODELIST=any SLURM_JOB_NUM_NODES=2 LAUNCHER=mpirun NETWORK=10.77.0.0/24 \
  MPIRUN_FLAGS="--oversubscribe --mca plm_rsh_agent $scratch/ssh --mca mpi_yield_when_idle 1 --mca btl_vader_single_copy_mechanism none"
launch_on_both() { # RANKS-A-NODE COMMAND...
  local status=0
  SLURM_NTASKS_PER_NODE=$1 timeout 120 ip netns exec "${net}a" "$here/../../examples/slurm/launch.sh" "${@:2}" || status=$?
  for ((i = 0; i < 3000; ++i)); do  # mpirun does not wait for its replacement of ssh
    [[ -e busy ]] || return $status
    sleep 0.02
  done
  fail "the second node does not end"
}

order=$(launch_on_both 2 sh -c 'echo "$OMPI_COMM_WORLD_RANK $(hostname)"' | sort -n | paste -sd' ')
[[ $order == "0 $(hostname) 1 $(hostname) 2 second 3 second" ]] || fail "ranks and hosts: $order"
echo "ok: ranks follow the nodes"

# on_nodes MESH CSV FLAGS...: train() on the two nodes.
on_nodes() {
  local tp pp dp zero csv=$2
  IFS=, read -r tp pp dp zero <<<"$1"
  launch_on_both $((tp * pp * dp / 2)) "$bin/pretrain_gpt" "${model[@]}" --tensor-model-parallel-size "$tp" \
    --pipeline-model-parallel-size "$pp" --zero-stage "$zero" --loss-csv "$csv" "${@:3}"
}
for mesh in 2,2,1,0 2,1,2,3 1,2,1,1; do
  rm -f one.csv two.csv
  train $mesh one.csv --train-iters 8 >log 2>&1 || fail "$mesh on one node: $(grep -m1 pretrain_gpt: log)"
  on_nodes $mesh two.csv --train-iters 8 >log 2>&1 || fail "$mesh on two nodes: $(tail -5 log)"
  same one.csv two.csv "two nodes, tp,pp,dp,zero $mesh"
done

# Each node has its own disk.
echo 1G >own-disks
rm -f whole.csv part.csv
train 1,1,2,3 whole.csv --train-iters 6 --lr-decay-iters 12 >log 2>&1 || fail "$(tail -5 log)"
on_nodes 1,1,2,3 part.csv --train-iters 3 --lr-decay-iters 12 --save disk/ckpt --save-interval 1 --save-total-limit 1 >log 2>&1 ||
  fail "own disks: $(tail -5 log)"
[[ $(tar -tf second.tar | grep -c '/global_step[0-9]*/$') == 1 ]] || fail "--save-total-limit 1 left on the second disk: $(tar -tf second.tar)"
[[ ! -e disk/ckpt/global_step3/zero_pp_rank_1_mp_rank_00_optim_states.pt && -e disk/ckpt/global_step3/manifest.json ]] ||
  fail "the first node has: $(ls disk/ckpt/global_step3)"
on_nodes 1,1,2,3 part.csv --train-iters 6 --lr-decay-iters 12 --load disk/ckpt >log 2>&1 || fail "own disks: $(tail -5 log)"
same whole.csv part.csv "nodes without a shared file system go on" 1
if train 1,1,1,3 part.csv --train-iters 6 --lr-decay-iters 12 --load disk/ckpt >log 2>&1; then fail "loaded half of a checkpoint"; fi
grep -q 'optim_states.pt.*is missing.*(written on second)' log || fail "what is missing: $(tail -5 log)"
bytes=$(tar -xOf second.tar ./ckpt/global_step3 | wc -c)
# A node, either of the two, has lost its disk with the checkpoint's manifest. The run has --save there.
again=(1,1,2,3 part.csv --train-iters 6 --lr-decay-iters 12 --load disk/ckpt --save disk/ckpt)
mv second.tar kept.tar
if on_nodes "${again[@]}" >log 2>&1; then fail "went on without the second disk"; fi
grep -q 'optim_states.pt.*is missing.*(written on second)' log || fail "the second disk: $(tail -5 log)"
mv kept.tar second.tar
mv disk/ckpt first
if on_nodes "${again[@]}" >log 2>&1; then fail "went on without the first disk"; fi
grep -q "optim_states.pt.*is missing.*(written on $(hostname))" log || fail "the first disk: $(tail -5 log)"
echo "ok: what is missing is listed with its host"

# A disk for three of the second node's own checkpoints suffices for two. Two checkpoints of both nodes would need room for
# four. A disk for one is refused.
rm -f second.tar
save=(--train-iters 2 --lr-decay-iters 12 --save disk/small --save-interval 1 --save-total-limit 1)
echo $((3 * bytes)) >own-disks
on_nodes 1,1,2,3 small.csv "${save[@]}" >log 2>&1 || fail "a disk for three: $(grep pretrain_gpt: log)"
rm second.tar
echo "$bytes" >own-disks
if on_nodes 1,1,2,3 small.csv "${save[@]}" >log 2>&1; then fail "two checkpoints on a disk for one"; fi
grep -Eq '\[rank 1\] --save disk/small: 2 to come, at most 2 more at a time, each [0-9.]+ [KMGT]?B here: .* do not suffice' log ||
  fail "a disk for one: $(tail -5 log)"
echo "ok: each node's disk has to hold its own ranks' files"
