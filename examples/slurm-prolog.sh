#!/bin/bash
# Slurm Prolog: measures the GPUs of a node before a job, and drains the node only if one of them is slow or wrong.
# In slurm.conf, for nodes that are not shared: Prolog=/opt/roofmark/examples/slurm-prolog.sh, PrologFlags=Alloc
# The check takes minutes: set BatchStartTimeout in slurm.conf to more than the 360 s below (its default is 10 s).
# The log names a GPU that is missing of 8, which does not drain the node.
# A missing file, a timeout or any other error of this check lets the job start.
cd "${ROOFMARK:-/opt/roofmark}" || exit 0
runs=${ROOFMARK_PROLOG_RUNS:-/var/lib/roofmark}/$(date +%Y%m%dT%H%M%S)

timeout 300 .venv/bin/torchrun --standalone --nproc-per-node gpu \
    -m bench.fleet --quick --quiet --deadline 240 -o "$runs" # a rank that is lost does not hide a wrong device
timeout 60 .venv/bin/python -m bench fleet-report "$runs" --expect 8
[ $? -eq 1 ] && exit 1 # 1: a slow or wrong device; 2 and 3: the report itself failed, or something is missing
exit 0
