"""Structures from files, in any format of ASE; every record of SDF, PDB and GRO files."""

from torchmdx.structures.files.read import Record as Record
from torchmdx.structures.files.read import own_frames as own_frames
from torchmdx.structures.files.read import read_record as read_record
from torchmdx.structures.files.read import read_records as read_records
from torchmdx.structures.files.read import read_structure as read_structure
from torchmdx.structures.files.read import read_structures as read_structures

__all__ = ["Record", "own_frames", "read_record", "read_records", "read_structure", "read_structures"]
