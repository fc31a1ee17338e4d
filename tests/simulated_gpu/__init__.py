"""A GPU that is not there: tensors on `cuda:0` whose values are in host memory, and a device clock that is made up.

    python -m tests.simulated_gpu bench.matmul --dtype fp16 --shape 64

It runs the CUDA path of a command without a GPU: device detection, streams, events, graphs, torch's operations (forward
only) and Triton kernels, in Triton's interpreter. **Times are made up**: each operation takes a fixed time plus its
bytes at a fixed rate, whatever the host takes. What a GPU rejects is rejected here: operands on two devices, waiting
within a capture, the time of an event that was not waited for. There is one stream, and no NVML, autograd or profiler.

    tensors     the tensor class, and the dispatch mode that runs operations and records captures
    cuda        stands for `torch.cuda`: streams, events, graphs, properties
    kernels     launches of Triton kernels, which run in the interpreter
    start       puts all of it in place in a process and in those that it starts
"""
