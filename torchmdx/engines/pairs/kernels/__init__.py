"""Triton kernels of the pairs engine."""
