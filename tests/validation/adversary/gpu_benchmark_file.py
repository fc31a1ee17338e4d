"""A test with the fixture `gpu_benchmark`; paths.py passes the function."""


def test_function(gpu_benchmark, plugin):
    function, inputs = plugin.arguments
    gpu_benchmark(function, inputs=inputs, budget_s=0.3)
    plugin.record = gpu_benchmark.record
