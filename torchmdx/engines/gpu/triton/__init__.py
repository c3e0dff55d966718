"""Triton kernels of the fused engine."""
