"""The CPU's kernels in C, message sums and forms: compiled once with the machine's compiler, and optional."""
