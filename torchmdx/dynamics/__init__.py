"""Molecular dynamics on the device of the potential."""
