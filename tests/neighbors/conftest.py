def pytest_configure(config):
    config.addinivalue_line("markers", "interpreted: runs GPU kernels on the CPU, under Triton's interpreter")
