"""What every flag, column, verdict and bound of the tables means, what to do about it, and where to read on."""

from __future__ import annotations

from dataclasses import dataclass

ROOFLINE = "Williams, Waterman and Patterson, Roofline (2009); roofline/README.md"
TIMING = "bench/README.md, How it measures"
COMPARING = "bench/README.md, Compare"
TRAINING = "python -m bench.train_step --help"
TRANSFERS = "python -m bench.transfer --help"
PROFILING = "bench/README.md, Profile a model"
TUNING = "NVIDIA, CUDA C++ Best Practices Guide; kernels/README.md"


@dataclass(frozen=True)
class Word:
    """One entry."""

    kind: str
    """`flag`, `column`, `row`, `verdict` or `bound`."""
    meaning: str
    advice: str = ""
    """What to do about it, or how to read it; empty where there is nothing to do."""
    source: str = ""
    """Where to read on."""


def _flag(meaning: str, advice: str, source: str = TIMING) -> Word:
    return Word("flag", meaning, advice, source)


def _column(meaning: str, advice: str = "", source: str = "bench/README.md, Read the table") -> Word:
    return Word("column", meaning, advice, source)


FLAGS = {
    "not-converged": _flag(
        "The 95 % interval of the median stayed wider than asked for when the time was over.",
        "Give a larger --budget, or let nothing else run; compare only differences larger than the interval.",
    ),
    "not-cold": _flag(
        "The copies of the inputs did not fill the last-level cache: the time is `partly-cold` (one copy: `warm`).",
        "Take a larger shape, or ask for --cache warm: one copy, and a time of another meaning.",
    ),
    "l2-suspect": _flag(
        "The time is as short as from a cache, or nothing shows that it is not.",
        "Take a larger shape; compare with --cache warm: equal times mean that the cache was warm.",
    ),
    "preempted": _flag(
        "Other processes, or other guests of the same host, took cores away while the row was measured.",
        "Wait until nothing else runs and measure again; `python -m bench doctor` tells whether the machine is quiet.",
    ),
    "throttled": _flag(
        "Heat, a power brake or a CPU quota slowed the device while the row was measured.",
        "Cool the device or lift the quota; times are those of a slower device.",
    ),
    "power-limited": _flag(
        "The GPU's power limit held its clock down, which is normal for large products.",
        "Nothing, but compare only with runs under the same limit.",
    ),
    "launch-limited": _flag(
        "The host needs longer to launch the kernel than the GPU needs to compute it.",
        "Capture the launches in a CUDA graph, fuse kernels, or take a larger case.",
    ),
    "tick-limited": _flag(
        "A sample lasts only a few ticks of the clock, so that its time is coarse.",
        "Take a larger case.",
    ),
    "not-captured": _flag(
        "A CUDA graph of the launches could not be timed, or its replay did not do what they do; queued launches were.",
        "Work on torch's current stream and without a wait for the host, so that it can be captured.",
    ),
    "interpreted": _flag(
        "The kernel ran in Triton's interpreter (TRITON_INTERPRET): its result is checked, its time means nothing.",
        "Time the kernel on a GPU, without TRITON_INTERPRET.",
    ),
    "near-floor": _flag(
        "An empty kernel takes a tenth of this time or more: the row measures launching as well.",
        "Take a larger case, or do the work of several launches in one kernel.",
    ),
    "bimodal": _flag(
        "The samples have two speeds: the median is one of them or lies between.",
        "Look for a second clock, another process or two code paths; give a larger --budget and look again.",
    ),
    "drifting": _flag(
        "The samples became slower or faster during the row, by more than they scatter.",
        "Let the device settle, or give a larger --budget; a warm machine drifts less.",
    ),
    "above-roof": _flag(
        "The row is faster than the ceiling that judges it.",
        "Measure the ceiling again when the machine is quiet: `python -m bench calibrate`; or the cache was not cold.",
        ROOFLINE,
    ),
    "doubtful-roof": _flag(
        "The ceiling that judges the row was measured while something else held the device back.",
        "Measure it again when the machine is quiet: `python -m bench calibrate`.",
        ROOFLINE,
    ),
    "faster-than-physics": _flag(
        "The row is faster than the device can be at all; its time is not believed, and the row is invalid.",
        "Look for work that is left out or that ends after the clock stopped.",
        ROOFLINE,
    ),
    "beyond-rounding": _flag(
        "The result is further off than rounding explains, and --tolerance allowed it.",
        "Say so where you report the time: it is that of another accuracy.",
    ),
    "settings-restored": _flag(
        "Importing or calling the function changed a setting of torch or of the process; it was set back.",
        "Leave global settings alone in a kernel's file.",
    ),
    "unmodelled": _flag(
        "No rule counts the FLOPs and bytes of this operation; its time is known, its work is not, and no sum has it.",
        "Declare the work of an operation of your own: `bench.declare_work`.",
        PROFILING,
    ),
    "host-sync": _flag(
        "The operation brings a value to the host, as `.item()` does, and a GPU runs dry while the host waits.",
        "Keep the value on the device, or read it every so many steps.",
        PROFILING,
    ),
    "data-dependent": _flag(
        "The shape of the result depends on the values of the inputs: the work is that of this step alone.",
        "Profile with inputs like those of real use; a compiler breaks its graph here.",
        PROFILING,
    ),
    "replay-differs": _flag(
        "Measured alone, the operation takes a time that differs by more than 20 % from that within the step.",
        "Within the step other operations fill the cache and the clock; believe the step for what a step costs.",
        PROFILING,
    ),
}

COLUMNS = {
    "op": _column("The operation.", "`python -m bench list` has all with their formulas."),
    "case": _column("The shape in the order of the op's axes; behind a colon, options other than the usual."),
    "dtype": _column("The dtype of the inputs; fp32 is torch.float32, bf16 torch.bfloat16."),
    "options": _column("What tells rows of one case apart beside dtype and provider: recipe, checkpoint, memory, ..."),
    "provider": _column("Who computes: torch, torch-compile, triton-vN, or a function of yours."),
    "fill": _column("What the inputs hold: uniform in [-1, 1], normal, or zeros, on which a GPU may clock higher."),
    "status": _column("ok: measured and right; skipped: not run; invalid: ran and was wrong; failed: raised an error."),
    "reason": _column("Why a row was not measured, or why a comparison has its verdict."),
    "median": _column("Seconds of one launch: half of the samples are shorter.", source=TIMING),
    "95% CI": _column("Half the width of the 95 % confidence interval, as a share of the median.", source=TIMING),
    "TFLOP/s": _column("Declared FLOPs over the median, in 10^12 a second; a fused multiply-add counts as 2."),
    "GFLOP/s": _column("Declared FLOPs over the median, in 10^9 a second; a fused multiply-add counts as 2."),
    "GB/s": _column("Compulsory bytes over the median, in 10^9 a second: inputs read once, outputs written once."),
    "FLOP/B": _column("Arithmetic intensity: FLOPs over compulsory bytes.", source=ROOFLINE),
    "bound": _column(
        "The limit that takes longest at this intensity: memory, compute, launch, or mixed where two are within 10 %.",
        "`python -m bench explain memory 40%` says what can be done; 'side' means that something else holds it back.",
        ROOFLINE,
    ),
    "MFU": _column(
        "Model FLOPs utilization: achieved FLOP/s over the dense peak of the dtype.",
        "Read it for products; for a memory-bound row MBU or % roof says more.",
        "Chowdhery et al., PaLM (2022), appendix B",
    ),
    "MBU": _column("Achieved bytes a second over the memory bandwidth.", "Read it for memory-bound rows."),
    "% roof": _column("Achieved over the attainable rate min(peak, intensity x bandwidth).", source=ROOFLINE),
    "% meas": _column("The same over ceilings measured on this machine, beside those of a datasheet.", source=ROOFLINE),
    "mix": _column("The mix of reads and writes whose bandwidth judges the row: read, triad 2:1, copy 1:1, write."),
    "first call": _column("Seconds of the first call: loading, compiling, tuning; not in the samples.", source=TIMING),
    "n": _column("Samples; each is one reading of the clock around one or more launches.", source=TIMING),
    "flags": _column("What speaks against the row.", "`-v` gives the reason of each."),
    # comparisons and histories
    "verdict": _column("FASTER, SLOWER, SAME or UNSURE, for the candidate against the baseline.", source=COMPARING),
    "time ratio": _column("The candidate's time over the baseline's, taken within each round.", source=COMPARING),
    "baseline": _column("Time of what the candidate is set against.", source=COMPARING),
    "candidate": _column("Time of what is compared with the baseline.", source=COMPARING),
    "MFU baseline": _column("MFU of the baseline; there only if a peak is known.", source=COMPARING),
    "MFU candidate": _column("MFU of the candidate; there only if a peak is known.", source=COMPARING),
    "% of ceiling": _column("The share of the ceiling that binds that both sides reach.", source=ROOFLINE),
    "flagged": _column("Which side has flags: baseline, candidate or both.", source=COMPARING),
    "time ratio to last": _column("The median over that of the run before.", source="results/README.md"),
    # training steps
    "model": _column("The model, or the FLOPs that it needs, in the table of FLOPs.", source=TRAINING),
    "recipe": _column("Precision of weights and products: fp32, amp or bf16.", source=TRAINING),
    "checkpoint": _column("Which layers are computed again in the backward pass, to keep less.", source=TRAINING),
    "micro batches": _column("Parts that a step's sequences are computed in.", source=TRAINING),
    "optimizer": _column("The optimizer, or the seconds of its phase.", source=TRAINING),
    "device": _column(
        "On a GPU: seconds of the same step where all of it is queued before it begins: the host costs nothing.",
        source=TRAINING,
    ),
    "lost to host": _column(
        "Share of the step in which the GPU waits for the host.",
        "Launch less often: fuse, compile (`--provider torch-compile`), or give the GPU more work in each step.",
        TRAINING,
    ),
    "forward": _column("Median seconds of the forward passes of a step.", source=TRAINING),
    "backward": _column("Median seconds of the backward passes of a step.", source=TRAINING),
    "tokens/s": _column("Tokens of a step or of a batch over the median.", source=TRAINING),
    "HFU": _column("Hardware FLOPs utilization: as MFU, with what is computed again counted too.", source=TRAINING),
    "kept by layers": _column("Estimate of the most that autograd keeps of the layers, in MB.", source=TRAINING),
    "peak": _column("Bytes of all tensors at the moment when most is held, in MB.", source=TRAINING),
    "parameters": _column("Bytes of the weights, in MB.", source=TRAINING),
    "gradients": _column("Bytes of the gradients, in MB.", source=TRAINING),
    "optimizer state": _column("Bytes that the optimizer keeps from step to step, in MB.", source=TRAINING),
    "inputs": _column("Bytes of tokens, targets and tables, in MB.", source=TRAINING),
    "activations": _column("Bytes that autograd keeps of the layers for the backward pass, in MB.", source=TRAINING),
    "cast copies": _column("Bytes of weights kept in another dtype, in MB.", source=TRAINING),
    "logits loss": _column("Bytes that logits and loss keep, in MB.", source=TRAINING),
    "temporary": _column("Bytes of tensors that live within a phase only, in MB.", source=TRAINING),
    "allocator peak": _column("What torch's allocator of a GPU says of the same step, in MB.", source=TRAINING),
    "executed": _column("FLOPs with those that are computed again.", source=TRAINING),
    "counted": _column("FLOPs that torch's own counter finds.", source=TRAINING),
    "predicted": _column("FLOPs that the counter should find.", source=TRAINING),
    "off by": _column("Predicted minus counted.", source=TRAINING),
    # transfers
    "bytes": _column("Bytes that an operation of a step must read and write.", source=PROFILING),
    "memory": _column("Of the host's side: pageable, or pinned, which the GPU reads itself.", source=TRANSFERS),
    "transfer": _column("Whether the host waits for the copy: blocking or non-blocking.", source=TRANSFERS),
    "prefetch": _column("Batches that a thread makes ahead.", source=TRANSFERS),
    "% link": _column("Share of what the PCI Express link carries one way.", source=TRANSFERS),
    "host kept": _column("Seconds that the call keeps the host.", source=TRANSFERS),
    "hidden": _column("Share of the shorter of copy and compute that hides behind the other.", source=TRANSFERS),
    "waits": _column("Share of the steps' time that they wait for their batch.", source=TRANSFERS),
    "work": _column("Seconds of a step's own work, as measured beside the loop.", source=TRANSFERS),
    # profiles
    "shapes": _column("Shapes of the tensors that the operation is called with.", source=PROFILING),
    "count": _column("Calls of the operation with these shapes in one step.", source=PROFILING),
    "calls": _column("Calls of all operations of the line in one step.", source=PROFILING),
    "time": _column("Seconds of all these calls within one recorded step.", source=PROFILING),
    "share": _column("That time over the time of the recorded step.", source=PROFILING),
    "cold alone": _column("Seconds of as many calls measured alone (`--replay`), caches cold.", source=PROFILING),
    "warm alone": _column("Seconds of as many calls measured alone (`--replay`), caches warm.", source=PROFILING),
    "FLOPs": _column("FLOPs of all these calls; a fused multiply-add counts as 2.", source=PROFILING),
    "phase": _column("forward, backward or optimizer.", source=PROFILING),
    "module": _column("Path of the module that called it; `*` stands for the number of a layer.", source=PROFILING),
}

ROWS = {
    "unattributed": Word(
        "row",
        "Time of operations and kernels that belong to no counted call.",
        "The row names the longest of them; the totals have the attributed share.",
        PROFILING,
    ),
    "host-gap": Word(
        "row",
        "Time of the recorded step in which no operation ran: Python, autograd, waiting for the host.",
        "Larger operations, `--compile` or CUDA graphs leave less of it.",
        PROFILING,
    ),
    "profiler-overhead": Word(
        "row",
        "What the recorded step took longer than the same step without a profiler.",
        "Nothing: it is no time of the model.",
        PROFILING,
    ),
}
"""What a profile has beside operations."""

VERDICTS = {
    "FASTER": Word(
        "verdict",
        "The whole interval of the ratio is below 1 by more than the margin, also among all rows of the table.",
        "Believe it for this case on this machine; run it again to see whether it holds in a new process.",
        COMPARING,
    ),
    "SLOWER": Word(
        "verdict",
        "The whole interval of the ratio is above 1 by more than the margin, also among all rows of the table.",
        "The command exits with 1, so that CI notices; run it again to see whether it holds in a new process.",
        COMPARING,
    ),
    "SAME": Word("verdict", "The whole interval of the ratio is within the margin around 1.", "", COMPARING),
    "UNSURE": Word(
        "verdict",
        "Neither is shown: the interval is wider than the margin, or what was measured is not to be believed.",
        "Read the reason of the row: a larger --budget, a quieter machine or a larger case may help. Saved runs need "
        "more runs of the same code beside them; bench compare needs none.",
        COMPARING,
    ),
}

BOUNDS = {
    "memory": Word(
        "bound",
        "Moving the compulsory bytes takes longer than computing on them: only the memory's bandwidth can limit it.",
        "Move fewer bytes: fuse it with its neighbors, take a narrower dtype, reuse what is in cache or registers.",
        ROOFLINE,
    ),
    "compute": Word(
        "bound",
        "Computing takes longer than moving the compulsory bytes: only the peak of the dtype can limit it.",
        "Use a dtype with a higher peak, tensor cores, or an algorithm with fewer FLOPs.",
        ROOFLINE,
    ),
    "mixed": Word(
        "bound",
        "The two longest limits are within 10 % of each other: the row stands at the ridge.",
        "Both must fall for it to become faster.",
        ROOFLINE,
    ),
    "launch": Word(
        "bound",
        "The shortest launch of any kernel takes longer than moving the bytes or computing on them.",
        "Launch fewer kernels: fuse them, capture them in a CUDA graph, or take a larger batch.",
        TIMING,
    ),
}

TRIED = {
    "memory": "wide and aligned loads, more of them in flight, fewer passes over the data, a larger case",
    "compute": "other tile sizes, tensor cores, more stages of loads ahead, extents that are multiples of the tiles",
    "mixed": "what helps memory-bound and compute-bound kernels: wide loads, other tile sizes",
    "launch": "fusing kernels, CUDA graphs, a larger batch",
}
"""What people try for a kernel far from the ceiling that binds it."""

NEAR_PCT, FAR_PCT = 80.0, 30.0
"""Shares of the ceiling: from the first on little is left to win; below the second something else holds it back."""


def lines_about(bound: str, share_pct: float) -> list[str]:
    """Return what a row at this share of the ceiling that binds means, what people try, and where to read on."""
    place = f"{bound}-bound at {share_pct:.3g} % of its ceiling"
    if share_pct > 100:
        above = FLAGS["above-roof"]
        lines = [f"{place}: {above.meaning[0].lower()}{above.meaning[1:]}", f"what to do: {above.advice}"]
    elif share_pct >= NEAR_PCT:
        left = f"at most a factor of {100 / share_pct:.3g}" if share_pct < 100 else "nothing"
        lines = [f"{place}: near the limit; a better kernel can win {left}.", f"what to do: {BOUNDS[bound].advice}"]
    elif share_pct >= FAR_PCT:
        left = f"a factor of {100 / share_pct:.2g}"
        lines = [f"{place}: {left} is left to a better kernel.", f"what people try: {TRIED[bound]}."]
    else:
        cause = "latency, too few threads, instructions or the library hold it back, not the ceiling"
        lines = [f"{place}: {cause}.", f"what people try: first a larger case, then {TRIED[bound]}."]
    return [*lines, f"read on: {ROOFLINE}; {TUNING}"]
