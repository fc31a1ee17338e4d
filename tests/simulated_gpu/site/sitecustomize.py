"""Started by Python itself in each process that finds this folder on its path: the simulated device
comes first.
"""

import os

if os.environ.get("ROOFMARK_SIMULATED_GPU") and os.environ.get("CUDA_VISIBLE_DEVICES") != "":
    from tests.simulated_gpu.start import start

    start()
