"""A simulated GPU: tensors on `cuda:0` with values in host memory, and a simulated device clock.

    python -m tests.simulated_gpu bench.matmul --dtype fp16 --shape 64

It runs the CUDA path of a command without a GPU: device detection, streams, events, graphs, torch's
operations (forward only) and Triton kernels, in Triton's interpreter. **Times are made up**: each
operation takes a fixed time plus its bytes at a fixed rate. It rejects what a GPU rejects: operands
on two devices, waiting within a capture, the time of an event before it has completed. There is one
stream, and no NVML, autograd or profiler.

    tensors     the tensor class, and the dispatch mode that runs operations and records captures
    cuda        replaces `torch.cuda`: streams, events, graphs, properties
    kernels     launches of Triton kernels, which run in the interpreter
    start       installs the simulation in a process and its child processes
"""
