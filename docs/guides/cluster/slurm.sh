#!/bin/bash
# A Ray cluster for one job of SLURM, a Ray node on each of its nodes, and a program on the first of them:
#
#     sbatch slurm.sh search.py --its arguments
#
# The program has Pool(ray="auto"). Python and fanwise[ray] are the same on all nodes, as in a folder that they share.
#SBATCH --job-name=search
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --time=04:00:00
# For GPUs: #SBATCH --gpus-per-node=4
set -euo pipefail

export FANWISE_HOME="${FANWISE_HOME:-$HOME/fanwise}"  # all nodes have to see this folder
export RAY_USAGE_STATS_ENABLED=0
# Without a token whoever reaches Ray's ports runs code here as you, and nodes may have other users.
export RAY_AUTH_MODE=token
RAY_AUTH_TOKEN=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
export RAY_AUTH_TOKEN

# step NODE COMMAND...: a step of the job on one node, beside the others that are there.
step() {
    srun --overlap --nodes=1 --ntasks=1 --cpus-per-task="$SLURM_CPUS_PER_TASK" --nodelist="$1" "${@:2}"
}

mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
addresses=$(step "${nodes[0]}" hostname --ip-address)
# The port and the folder are the job's own: another job may have a Ray on the same node. Nothing of ours goes through
# Ray's object store, so that it needs little memory.
export RAY_ADDRESS="${addresses%% *}:$((20000 + SLURM_JOB_ID % 10000))"
options=(--num-cpus="$SLURM_CPUS_PER_TASK" --num-gpus="${SLURM_GPUS_ON_NODE:-0}" --object-store-memory=100000000 --block)

step "${nodes[0]}" ray start --head --node-ip-address="${RAY_ADDRESS%:*}" --port="${RAY_ADDRESS#*:}" \
    --temp-dir="/tmp/ray-$SLURM_JOB_ID" --include-dashboard=false "${options[@]}" &
until step "${nodes[0]}" ray health-check --address "$RAY_ADDRESS" 2> /dev/null; do sleep 1; done
for node in "${nodes[@]:1}"; do
    step "$node" ray start --address="$RAY_ADDRESS" "${options[@]}" &
done

# A search asks how many workers there is room for when it begins: wait for all nodes.
step "${nodes[0]}" python -c '
import sys, time, ray
ray.init(log_to_driver=False)
while sum(node["Alive"] for node in ray.nodes()) < int(sys.argv[1]):
    time.sleep(1)
' "${#nodes[@]}"
step "${nodes[0]}" python "$@"
# The job is over, and SLURM ends the steps with Ray in them.
