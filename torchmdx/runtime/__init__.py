"""What every part needs of the machine: memory, modes of torch, kernels, devices, files, signals."""
