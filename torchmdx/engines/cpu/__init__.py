"""TensorNet on the CPU: filters from tables, kernels in C."""
