"""Puts the simulated device in place, in this process and in those that it starts."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
GUARD = "RIDGEPOINT_SIMULATED_GPU"


def torch_folder() -> Path:
    """Return where torch is, without importing it."""
    return Path(find_spec("torch").submodule_search_locations[0])


def missing() -> str | None:
    """Return what the simulation lacks here, None where it can run."""
    if shutil.which("g++") is None:
        return "the C++ side of the simulated GPU needs g++"
    if (torch_folder() / "lib" / "libtorch_cuda.so").exists():
        return "the simulated GPU needs the CPU build of torch; this one looks for a real one"
    return None


def build(folder: Path) -> Path:
    """Compile the C++ side into a folder and return the library.

    Raises:
        subprocess.CalledProcessError: the compiler fails.
    """
    include, libraries, library = torch_folder() / "include", torch_folder() / "lib", folder / "guard.so"
    command = ["g++", "-O1", "-std=c++20", "-fPIC", "-shared", f"-I{include}", str(HERE / "guard.cpp"), "-o"]
    command += [str(library), f"-L{libraries}", "-lc10", "-ltorch_cpu", f"-Wl,-rpath,{libraries}"]
    subprocess.run(command, check=True)
    return library


def environment(library: Path) -> dict[str, str]:
    """Return the variables with which a Python process starts on the simulated device."""
    paths = [str(HERE / "site"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        GUARD: str(library),
        "TRITON_INTERPRET": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }


def start() -> None:
    """Put the device in place; the C++ side must be there before torch is.

    Raises:
        RuntimeError: torch was imported before.
    """
    if "torch" in sys.modules:
        raise RuntimeError("torch was imported before the simulated device")
    ctypes.CDLL(os.environ[GUARD], mode=ctypes.RTLD_GLOBAL).register_guard()
    import torch

    # Each record carries the version, so that none is taken for that of a GPU.
    torch.__version__ = torch.torch_version.TorchVersion(f"{torch.__version__.partition('+')[0]}+simulated.gpu")
    from tests.simulated_gpu import cuda, fused, kernels, nvml, tensors

    cuda.install()
    fused.install()
    kernels.install()
    nvml.install()
    let_results_pass(tensors.SimulatedTensor)
    tensors.OnDevice().__enter__()
    # A module's parameters would otherwise keep their tensor object, and with it the old values.
    torch.__future__.set_swap_module_params_on_conversion(True)
    # A gradient that is in the right dtype already would be swapped with itself, which empties it.
    swap = torch.utils.swap_tensors
    torch.utils.swap_tensors = lambda one, other: None if one is other else swap(one, other)


def let_results_pass(simulated: type) -> None:
    """Let a user's function return a simulated tensor: the guards ask for the very type `torch.Tensor`."""
    import torch

    from bench.harness.data import checks

    checks.type = lambda value: torch.Tensor if type(value) is simulated else type(value)
