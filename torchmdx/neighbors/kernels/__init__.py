"""Triton kernels of the neighbour searches."""
