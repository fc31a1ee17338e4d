"""A small problem in the format of flashinfer-bench and SOL-ExecBench, and solutions of it."""

import json

REFERENCE = """
import torch

def run(x, weight, eps):
    scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
    return x * scale * weight

def generate(axes_and_scalars, device):
    rows, width = axes_and_scalars["rows"], axes_and_scalars["width"]
    return {"eps": 0.5, "weight": torch.ones(width), "x": torch.full((rows, width), 2.0)}
"""

X = {"shape": ["rows", "width"], "dtype": "float32"}

DEFINITION = {
    "name": "rmsnorm_w32",
    "op_type": "rmsnorm",
    "axes": {
        "rows": {"type": "var"},
        "heads": {"type": "const", "value": 4},
        "width": {"type": "expr", "expression": "heads * 2**3"},
    },
    "constraints": ["rows > 0"],
    "inputs": {
        "x": X,
        "weight": {"shape": ["width"], "dtype": "float32"},
        "eps": {"shape": None, "dtype": "float32"},
    },
    "outputs": {"y": X},
    "reference": REFERENCE,
    "custom_inputs_entrypoint": "generate",
}

RANDOM = {
    "x": {"type": "random"},
    "weight": {"type": "random"},
    "eps": {"type": "scalar", "value": 1e-6},
}

FORMULA = "torch.nn.functional.rms_norm(x, (x.shape[-1],), weight, eps)"
HEAD = "import torch\nSAVED = {}\n\ndef run(x, weight, eps):\n    "
INTO = HEAD.replace("eps)", "eps, y)")


def solution(content, language="python", into=False, definition="rmsnorm_w32"):
    return {
        "name": "a solution",
        "definition": definition,
        "author": "a test",
        "spec": {
            "language": language,
            "target_hardware": ["cpu"],
            "entry_point": "main.py::run",
            "destination_passing_style": into,
        },
        "sources": [{"path": "main.py", "content": content}],
    }


SOLUTIONS = {
    "right": solution(f"{HEAD}return {FORMULA}\n"),
    "into": solution(f"{INTO}y.copy_({FORMULA})\n", into=True),
    "unwritten": solution(f"{INTO}y[1:] = {FORMULA}[1:]\n", into=True),
    "cached": solution(f"{HEAD}return SAVED.setdefault(x.data_ptr(), {FORMULA})\n"),
    "rounded": solution(f"{HEAD}return {FORMULA}.half().float()\n"),
    "half": solution(f"{HEAD}return {FORMULA}.half()\n"),
    "cuda": solution("__global__ void run() {}", language="cuda"),
    "crash": solution(f"{HEAD}import os\n    os.abort()\n"),
    "other": solution("", definition="softmax"),
}


def workload(rows, inputs=RANDOM, **more):
    return {"uuid": f"rows-{rows}", "axes": {"rows": rows}, "inputs": inputs} | more


def write(directory, workloads):
    (directory / "definition.json").write_text(json.dumps(DEFINITION))
    lines = [json.dumps(each) + "\n" for each in workloads]
    (directory / "workload.jsonl").write_text("".join(lines))
    for name, each in SOLUTIONS.items():
        (directory / f"{name}.json").write_text(json.dumps(each))
