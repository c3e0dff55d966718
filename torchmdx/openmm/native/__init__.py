"""An OpenMM force in C++ that replays a captured step, and a CUDA context shared by OpenMM and torch."""
