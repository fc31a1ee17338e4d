"""Commands, options and values that were removed, each with its replacement."""

COMMANDS = {
    "tune": "list configurations in the kernel's own file with triton.autotune",
    "new-op": "copy bench/softmax.py and pass it as --op path/to/file.py; see bench/README.md",
    "smoke": "use `python -m bench doctor`",
}

OPTIONS = {
    "--counters": "run the operation under Nsight Compute: ncu python -m bench.matmul",
    "--fill-sensitivity": "measure with --fill uniform and --fill zeros, and use `python -m results compare --force`",
    "--metric": "results compare prints the MFU of both sides if the peak is known",
    "--page-cache": "the file stays in the page cache; drop it before a run with: echo 1 > /proc/sys/vm/drop_caches",
    "--panels": "draw one plot per dtype with --dtype",
    "--processes": "run the comparison again; `python -m results compare` compares the saved runs",
    "--recalibrate": "python -m bench calibrate measures the ceilings again",
    "--ranges": "run the operation under Nsight Compute: ncu python -m bench.matmul",
    "--theme": "python -m roofline plot latest --theme dark -o dark.png draws the saved run",
    "--recompute": "recomputation has one name everywhere: --checkpoint",
    "--time": "`python -m results show` lists the times; `python -m results compare --plot` draws two versions",
}

AUDIT_OPTIONS = {
    "--check": "keep the output of --format csv, and compare it with that of another release of Triton",
    "--fp-fusion": "kernels are compiled with fusion, as Triton does by default",
    "--gpu": "one GPU stands for each architecture; choose with --arch",
    "--no-fp-fusion": "kernels are compiled with fusion, as Triton does by default",
    "--odd-sizes": "audit your kernel with a signature without :16, python -m kernels audit file.py:kernel --signature",
    "--record": "write the figures to a file with --format csv > figures.csv",
    "--quick": "python -m kernels audit without a name compiles the quick set",
}
"""Options of `python -m kernels audit` alone: other commands have, or never had, options of these names."""

VALUES = {
    "mps": "Apple GPUs are no longer measured; use cpu",
    "print": "choose light or dark",
    "pytest-benchmark": "choose json; pytest-benchmark saves its own JSON with --benchmark-json",
}
