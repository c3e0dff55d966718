"""Interface to LAMMPS, with its box on several processes and GPUs. The pair style is a plugin; see docs/lammps.md."""

from typing import TYPE_CHECKING

from torchmdx.runtime.public_names import public_names

if TYPE_CHECKING:
    from torchmdx.lammps.build import plugin_file as plugin_file
    from torchmdx.lammps.build import source_folder as source_folder
    from torchmdx.lammps.example import water as water
    from torchmdx.lammps.example import write_example as write_example
else:
    __all__, __getattr__, __dir__ = public_names(__name__)
