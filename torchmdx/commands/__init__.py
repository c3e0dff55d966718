"""Subcommands of the `torchmdx` command, one module each."""
