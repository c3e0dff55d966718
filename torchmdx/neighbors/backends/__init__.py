"""Searches that give pairs as arrays, and the frame in which they fill buffers.

Searches are plain torch, vesin and torch-cluster; a cell list in C fills the buffers itself.
"""

from torchmdx.neighbors.backends import cell_list, torch_cluster, vesin
from torchmdx.neighbors.backends.frame import CpuSearch, Search, torch_brute_force

__all__ = ["CpuSearch", "Search", "cell_list", "torch_brute_force", "torch_cluster", "vesin"]
