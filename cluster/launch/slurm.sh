#!/bin/bash
# One command of rayfed-kd on whole Slurm nodes. From the clone's root, which all nodes must see:
#
#   sbatch cluster/launch/slurm.sh run configs/fedkf/mnist.yaml results.folder=/shared/runs/mnist
#   sbatch cluster/launch/slurm.sh resume /shared/runs/mnist
#   sbatch --array=1-5 cluster/launch/slurm.sh compare STUDY    # a job for each seed; then, for the tables:
#   sbatch cluster/launch/slurm.sh compare STUDY --seeds 5      # finished runs are not run again
#
# Edit the lines below and env.sh. Ray's processes end with `ray stop`, which ends every Ray of the user on a
# node: hence whole nodes.
#SBATCH --job-name=rayfed-kd
#SBATCH --nodes=2
#SBATCH --time=12:00:00
##SBATCH --partition=NAME
##SBATCH --gpus-per-node=4
#SBATCH --requeue
# Leave these. SIGTERM comes 300 s before the time is over, to this script alone: the run writes a checkpoint.
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --ntasks-per-node=1
#SBATCH --signal=B:TERM@300
#SBATCH --output=%x-%j.out

set -euo pipefail
(($#)) || { echo "expected a command, as: sbatch $0 run configs/quickstart.yaml" >&2; exit 2; }
. cluster/launch/env.sh

# An array's task runs the seed of its number.
[ "$1" != compare ] || [ -z "${SLURM_ARRAY_TASK_ID:-}" ] || set -- "$@" --seed "$SLURM_ARRAY_TASK_ID"
# A job that Slurm began again goes on: a comparison by the same command, a run that has a folder by `resume`,
# a search that has one by --resume.
if [ "${SLURM_RESTART_COUNT:-0}" -gt 0 ]; then
    folder='' before=''
    for word in "$@"; do
        case $before$word in results.folder=* | --folder=*) folder=${word#*=} ;; --folder*) folder=$word ;; esac
        [ "$word" = --folder ] && before=$word || before=''
    done
    case $1 in
        run) [ ! -f "$folder/config.yaml" ] || set -- resume "$folder" --restart ;;
        tune) [ ! -f "$folder/search.yaml" ] || set -- "$@" --resume ;;
    esac
fi

# Four ports a job: above those of Ray's workers (10002 to 19999), below the system's own (32768 and up).
port=$((20000 + SLURM_JOB_ID % 3000 * 4))
# This script runs on the first node, where its own name may mean 127.x.
nodes=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
read -r head _ < <(getent ahostsv4 "${nodes%%$'\n'*}") ||
    { echo "${nodes%%$'\n'*}, the first node, has no IPv4 address that getent knows" >&2; exit 1; }
[[ $head != 127.* ]] || read -r head _ < <(hostname -I)
# On each node's own disk; short, for Ray's sockets below it take 107 characters at most. Not --temp-dir:
# symmetric-run itself looks for the cluster here.
export RAY_TMPDIR=/tmp/rayfed-kd-$SLURM_JOB_ID
export RAY_SYMMETRIC_RUN_CLUSTER_WAIT_TIMEOUT=300 # Ray's 30 s are short for Python on a shared disk
RAY_AUTH_TOKEN=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \n')
export RAY_AUTH_TOKEN

rm -rf "$RAY_TMPDIR"
mkdir -m 700 "$RAY_TMPDIR" # fails where somebody else has one of this name
trap 'srun --export=ALL --ntasks-per-node=1 rm -rf "$RAY_TMPDIR"' EXIT
export head port
# Each node's task. symmetric-run runs the command on the head, and ends with 0 where Ray did not start; on the
# others it gives up after seconds if nothing listens at the head.
task='
    if [ "$SLURM_NODEID" != 0 ]; then
        rm -rf "$RAY_TMPDIR" && mkdir -m 700 "$RAY_TMPDIR" || exit 1
        for _ in {1..300}; do (: <"/dev/tcp/$head/$port") 2>/dev/null && break; sleep 1; done
        exec ray symmetric-run "$@"
    fi
    ray symmetric-run "$@" || true
    [ -s "$RAY_TMPDIR/status" ] || { echo "Ray did not start on $head: see above" >&2; echo 1 >"$RAY_TMPDIR/status"; }
'
command='python -m rayfed_kd "$@" & echo $! >"$RAY_TMPDIR/pid"; wait $!; echo $? >"$RAY_TMPDIR/status"'
srun --export=ALL --nodes="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 --cpu-bind=none \
    bash -c "$task" task --address "$head:$port" --min-nodes "$SLURM_JOB_NUM_NODES" \
    --dashboard-port=$((port + 1)) --ray-client-server-port=$((port + 2)) \
    --dashboard-agent-listen-port=$((port + 3)) \
    -- bash -c "$command" rayfed-kd "$@" --address "$head:$port" &
step=$!

on_term() {
    echo "SIGTERM: ends with a checkpoint; go on with: sbatch cluster/launch/slurm.sh resume FOLDER" >&2
    kill -TERM "$(cat "$RAY_TMPDIR/pid" 2>/dev/null || echo "$step")" || true
}
trap on_term TERM
until [ -s "$RAY_TMPDIR/status" ] || ! kill -0 "$step" 2>/dev/null; do sleep 2; done

# The other nodes would wait minutes for the head to come back; srun passes the signal on to all.
kill -TERM "$step" 2>/dev/null || true
timeout 60 tail --pid="$step" -f /dev/null || true
exit "$(cat "$RAY_TMPDIR/status" 2>/dev/null || echo 1)"
