"""Subcommands of the `torchmdx` command, a module each."""
