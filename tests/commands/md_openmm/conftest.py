"""The fixtures of `torchmdx md`."""

from md_fixtures import done, ethanol_file, folder, model, salt_file, unplotted

__all__ = ["done", "ethanol_file", "folder", "model", "salt_file", "unplotted"]
