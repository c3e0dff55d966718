"""What a potential tells of a structure beyond energy, forces and stress."""

from typing import TYPE_CHECKING

from torchmdx.runtime.public_names import public_names

if TYPE_CHECKING:
    from torchmdx.evaluation.properties.dispersion_tail import Tail as Tail
    from torchmdx.evaluation.properties.dispersion_tail import dispersion_tails as dispersion_tails
    from torchmdx.evaluation.properties.force_uncertainty import force_uncertainties as force_uncertainties
else:
    __all__, __getattr__, __dir__ = public_names(__name__)
