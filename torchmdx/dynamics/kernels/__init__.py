"""Triton kernels of the integrators."""
