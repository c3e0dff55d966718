"""An OpenMM force in C++ that replays a captured step, and one CUDA context for OpenMM and torch."""
