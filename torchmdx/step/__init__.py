"""The captured step and what it consists of."""
