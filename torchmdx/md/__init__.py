"""Molecular dynamics for the command line: what `torchmdx md` needs besides the OpenMM force."""
