#!/bin/bash
# Slurm Prolog: measures the GPUs of a node before a job, and drains the node only if one of them is slow.
# In slurm.conf, for nodes that are not shared: Prolog=/opt/roofmark/examples/slurm-prolog.sh, PrologFlags=Alloc
# A missing file, a timeout or any other error of this check lets the job start.
cd "${ROOFMARK:-/opt/roofmark}" || exit 0
runs=${ROOFMARK_PROLOG_RUNS:-/var/lib/roofmark}/$(date +%Y%m%dT%H%M%S)

timeout 300 .venv/bin/torchrun --standalone --nproc-per-node gpu \
    -m bench.fleet --quick --quiet --deadline 240 -o "$runs" || exit 0
timeout 60 .venv/bin/python -m bench fleet-report "$runs"
[ $? -eq 1 ] && exit 1 # 1: a slow device; 2 and 3: the report itself failed, or something was not measured
exit 0
