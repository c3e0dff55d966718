/* TensorNet's evaluation in float64. */
#define REAL_BITS 64
#include "tensornet.c"
