"""Potentials in files: saving, loading, names, releases."""
