"""Searches that give pairs as arrays: plain torch, vesin, torch-cluster; and the frame that they fill buffers in."""

from torchmdx.neighbors.backends import torch_cluster, vesin
from torchmdx.neighbors.backends.frame import CpuSearch, Search, torch_brute_force

__all__ = ["CpuSearch", "Search", "torch_brute_force", "torch_cluster", "vesin"]
