#!/bin/bash
# Measures the GPUs of the hosts that are named as arguments, and reports on all of them: ./ssh.sh node1 node2 node3
# Each host has the repository in ~/roofmark. The GPUs of a host start together, the hosts do not.
for host in "$@"; do
    ssh "$host" "cd roofmark && rm -rf fleet && ROOFMARK_NODE=$host .venv/bin/torchrun --standalone \
        --nproc-per-node gpu -m bench.fleet --quick -o fleet" &
done
wait
mkdir -p fleet
for host in "$@"; do
    scp -q "$host:roofmark/fleet/*.jsonl" fleet/
done
python -m bench fleet-report fleet --hosts "$@" # names a host that cannot be reached
