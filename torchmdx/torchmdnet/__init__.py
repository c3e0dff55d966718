"""Checkpoints of torchmd-net. Only tensors, numbers and text are read from them: `weights_only=True`, always."""
