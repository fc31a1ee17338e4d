"""What a run file keeps beside the device: versions, host, and the revision of the code that measures."""

from __future__ import annotations

import functools
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from bench.harness.device import gpu_state
from bench.harness.device import host as machine

GIT_VARIABLES = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_OBJECT_DIRECTORY", "GIT_PREFIX")
"""Variables by which a process is bound to one repository. Source: git-rev-parse(1), `--local-env-vars`."""


def versions() -> dict[str, str | None]:
    """Return the versions of what takes part in a measurement, None for what is not there."""
    import torch

    has_gpu = torch.cuda.is_available()
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": installed_version("triton"),
        "cuda": torch.version.cuda if has_gpu else None,
        "driver": gpu_state.driver_version() if has_gpu else None,
    }


def installed_version(distribution: str) -> str | None:
    """Return the version of an installed distribution, or None, without importing it."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def host() -> dict[str, Any]:
    """Return what is known of the machine around the device."""
    return {
        "name": platform.node(),
        "kernel": platform.release(),
        "cpu": machine.cpu_name(),
        "cores": os.cpu_count(),
        "memory_bytes": machine.memory_bytes()[0],
    }


@functools.cache
def git_state() -> dict[str, Any]:
    """Return revision and cleanness of the code that measures, None outside of a git checkout.

    A new file counts only in the folders of the code: a function or an output of the user beside them changes nothing,
    and neither does a published record.
    """
    code = ("bench", "kernels", "results", "roofline", ":(exclude)results/published")
    root = Path(__file__).resolve().parents[3]
    status = _git(root, "status", "--porcelain", "--", *code)
    return {"sha": _git(root, "rev-parse", "HEAD"), "dirty": None if status is None else bool(status)}


def file_git_state(file: Path) -> dict[str, Any] | None:
    """Return `sha` and `dirty` of the repository that holds a file; None if there is none, or if it ignores the file.

    Dirty is what git itself calls so (`git describe --dirty`): files that it tracks were changed, or the file is not
    among those. What else is in the folder, such as the output of a measurement, changes no revision.
    """
    folder = file.parent
    sha = _git(folder, "rev-parse", "HEAD")
    if sha is None or _git(folder, "check-ignore", "--quiet", "--", file.name) is not None:
        return None
    status = _git(folder, "status", "--porcelain", "--untracked-files=no")
    is_tracked = _git(folder, "ls-files", "--error-unmatch", "--", f":(literal){file.name}") is not None
    return {"sha": sha, "dirty": None if status is None else bool(status) or not is_tracked}


def _git(folder: Path, *words: str) -> str | None:
    """Return what git answers in a folder, None if it fails; it reads and changes nothing, not even its index.

    Variables that name a repository, as hooks set them, would make it answer for another one.
    """
    environment = {name: value for name, value in os.environ.items() if name not in GIT_VARIABLES}
    command = ["git", "--no-optional-locks", "-c", "core.fsmonitor=false", *words]
    try:
        output = subprocess.check_output(command, cwd=folder, env=environment, stderr=subprocess.DEVNULL, timeout=5)
    except (OSError, subprocess.SubprocessError):
        return None
    return output.decode(errors="replace").strip()


def command_line(prog: str, arguments: Sequence[str] | None = None) -> list[str]:
    """Return the command that reproduces this run; `arguments` None stands for those of the process."""
    is_file = prog.endswith(".py")  # an op file of a user's own
    return ["python", *([] if is_file else ["-m"]), prog, *(sys.argv[1:] if arguments is None else arguments)]
