"""The captured step and its parts."""
