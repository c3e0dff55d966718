"""Relaxations of many structures at once, in batches of a fixed shape."""
