"""What a potential tells of a structure beyond energy, forces and stress."""
