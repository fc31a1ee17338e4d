"""Puts the simulated device in place, in this process and in those that it starts."""

import ctypes
import os
import sys
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


CUDA, META, DEVICE_TYPES = 1, 14, 21
"""Numbers of device types. Source: torch 2.13, `torch/headeronly/core/DeviceType.h`."""


def libraries():
    """Return the folder of torch's libraries, without importing it."""
    return Path(find_spec("torch").submodule_search_locations[0]) / "lib"


def missing():
    if (libraries() / "libtorch_cuda.so").exists():
        return "the simulated GPU needs the CPU build of torch"
    return None


def environment():
    paths = [str(HERE / "site"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "ROOFMARK_SIMULATED_GPU": "1",
        "TRITON_INTERPRET": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }


def start():
    if "torch" in sys.modules:
        raise RuntimeError("torch was imported before the simulated device")
    import torch

    # The version is in every record, so none is mistaken for one of a GPU.
    torch.__version__ = torch.torch_version.TorchVersion(
        f"{torch.__version__.partition('+')[0]}+simulated.gpu"
    )
    from tests.simulated_gpu import cuda, kernels, tensors

    let_cuda_be_current()
    cuda.install()
    kernels.install()
    let_results_pass(tensors.SimulatedTensor)
    tensors.OnDevice().__enter__()


def let_cuda_be_current():
    """Make `cuda` the current device of torch, by the guard of the `meta` device, which does
    nothing.
    """
    library = ctypes.CDLL(str(libraries() / "libc10.so"))
    guards = (ctypes.c_void_p * DEVICE_TYPES).in_dll(
        library, "_ZN3c104impl26device_guard_impl_registryE"
    )
    guards[CUDA] = guards[META]


def let_results_pass(simulated):
    """Accept simulated tensors as results: the checks require the exact type `torch.Tensor`."""
    import torch

    from bench.harness.data import checks

    checks.type = lambda value: torch.Tensor if type(value) is simulated else type(value)
