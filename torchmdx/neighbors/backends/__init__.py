"""Searches that give pairs as arrays: plain torch, vesin, torch-cluster; the frame that they fill buffers in; and a
cell list in C that fills them itself.
"""

from torchmdx.neighbors.backends import cell_list, torch_cluster, vesin
from torchmdx.neighbors.backends.frame import CpuSearch, Search, torch_brute_force

__all__ = ["CpuSearch", "Search", "cell_list", "torch_brute_force", "torch_cluster", "vesin"]
