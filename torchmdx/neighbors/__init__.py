"""Neighbour lists: their layout, and the searches that fill them."""
