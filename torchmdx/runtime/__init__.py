"""Services of the machine that all rooms share: memory, torch's modes, kernel compilation, devices, files, signals."""
