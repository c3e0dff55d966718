"""Triton kernels of the pairwise engine."""
