"""A test with the fixture `gpu_benchmark`; paths.py passes the function."""


def test_function(gpu_benchmark, plugin):
    function, inputs, budget_s = plugin.arguments
    gpu_benchmark(function, inputs=inputs, budget_s=budget_s)
    [plugin.record] = gpu_benchmark.records.values()
