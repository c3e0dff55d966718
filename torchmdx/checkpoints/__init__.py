"""Checkpoints of potentials: saving, loading, names, releases."""

from typing import TYPE_CHECKING

from torchmdx.runtime.public_names import public_names

if TYPE_CHECKING:
    from torchmdx.checkpoints.save_load import load as load
    from torchmdx.checkpoints.save_load import load_ensemble as load_ensemble
    from torchmdx.checkpoints.save_load import save as save
else:
    __all__, __getattr__, __dir__ = public_names(__name__)
