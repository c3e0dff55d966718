/* The kernels for one instruction set. */
#define NAME(f) IN_SET(f##_float)
#define REAL float
#include "kernels_pair_forms.c"
#include "kernels_coulomb.c"
#undef NAME
#undef REAL
#define NAME(f) IN_SET(f##_double)
#define REAL double
#include "kernels_pair_forms.c"
#include "kernels_coulomb.c"
#undef NAME
#undef REAL
