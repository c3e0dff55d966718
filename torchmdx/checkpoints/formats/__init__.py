"""Formats of checkpoints, a module or folder each; `table` lists them."""
