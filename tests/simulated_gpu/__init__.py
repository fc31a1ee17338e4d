"""A GPU that is not there: tensors on `cuda:0` that lie in host memory, and a device clock that runs by a work model.

    python -m tests.simulated_gpu bench.matmul --dtype fp16 --shape 64

Every command runs its CUDA path from end to end on it: device detection, streams, events, graphs, pinned memory,
torch's CUDA operations, autograd, autocast, and Triton kernels in Triton's interpreter. Values are computed by
torch's CPU kernels. **Times are made up**: an operation takes what its bytes and FLOPs would take on the device of
`clock.py`, so that samples, flags and verdicts are of the right kind; no number of it says anything about a GPU.

What a GPU would refuse is refused here: operands in different places, waiting within a capture, reading the time of an
event that has not passed. What it does not show: races, kernels as machine code, the allocator's rounding, real clocks.

    tensors     the tensor class and the dispatch mode that keeps track of places
    clock       the device's timeline: when each operation ends, and what lies in its L2
    cuda        stands for `torch.cuda`: streams, events, graphs, memory, properties
    nvml        clocks, power and events of one of the recorded machines; by default of one that nothing limits
    fused       what is one kernel on a GPU and not on a CPU: RMSNorm, attention
    memory      bytes that the device's tensors hold, as torch's allocator would tell them
    kernels     launches of Triton kernels, which run in the interpreter
    guard       the C++ side that autograd asks for streams and events; built once by the compiler of the machine
"""
