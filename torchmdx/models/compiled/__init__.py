"""Message sums on the CPU, in C: compiled once with the machine's compiler, cached, and optional."""
