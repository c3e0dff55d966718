"""The folders below import stand-ins of this one, which pytest adds to the path with this file."""
