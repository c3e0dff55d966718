"""Front door: LAMMPS, with the box divided among processes and GPUs. The pair style is a plugin; see docs/lammps.md."""
