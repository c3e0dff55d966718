"""Checkpoints of torchmd-net. Reading them creates only tensors, numbers and text, and never runs code."""
