"""Checkpoints of potentials: saving, loading, names, releases."""
