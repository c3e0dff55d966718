"""Reads potentials of matgl."""
