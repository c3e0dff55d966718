"""Properties of crystals with any calculator of ASE: equation of state, elasticity, phonons, vacancies."""

from typing import TYPE_CHECKING

from torchmdx.runtime.public_names import public_names

if TYPE_CHECKING:
    from torchmdx.materials.elasticity import Elasticity as Elasticity
    from torchmdx.materials.elasticity import elastic as elastic
    from torchmdx.materials.eos import EquationOfState as EquationOfState
    from torchmdx.materials.eos import equation_of_state as equation_of_state
    from torchmdx.materials.phonon_bands import Phonons as Phonons
    from torchmdx.materials.phonon_bands import phonons as phonons
    from torchmdx.materials.vacancy import Vacancy as Vacancy
    from torchmdx.materials.vacancy import vacancies as vacancies
else:
    __all__, __getattr__, __dir__ = public_names(__name__)
