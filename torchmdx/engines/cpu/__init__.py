"""TensorNet on the CPU, with tabulated filters and kernels in C."""
