/* The kernels for one instruction set. */
#define NAME(f) KERNEL(f, float)
#define REAL float
#include "kernels_pair_forms.c"
#include "kernels_coulomb.c"
#undef NAME
#undef REAL
#define NAME(f) KERNEL(f, double)
#define REAL double
#include "kernels_pair_forms.c"
#include "kernels_coulomb.c"
#undef NAME
#undef REAL
