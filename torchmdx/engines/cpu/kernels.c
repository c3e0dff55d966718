/* Kernels over the rows of a neighbour list: of the network of pairs, and of Coulomb energies.

   They are compiled for several instruction sets, and for float and double: name_float_v3 and so on. */

#include "../../runtime/instructions.h"
#include <math.h>
#include <string.h>

static const int PART_END[3] = {1, 4, 9};
static const int PART_START[3] = {0, 1, 4};

#include "kernels_threads.c"

#define KERNEL(f, real) f##_##real##_base
#include "kernels_each.h"
#undef KERNEL

#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("arch=x86-64-v3"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("arch=x86-64-v3")
#endif
#define KERNEL(f, real) f##_##real##_v3
#include "kernels_each.h"
#undef KERNEL
#if defined(__clang__)
#pragma clang attribute pop
#pragma clang attribute push(__attribute__((target("arch=x86-64-v4"))), apply_to = function)
#else
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("arch=x86-64-v4")
#endif
#define KERNEL(f, real) f##_##real##_v4
#include "kernels_each.h"
#undef KERNEL
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif

/* The number of the instruction set to use: 0 base, 1 v3, 2 v4. */
int64_t kernels_instructions(int64_t most) { return best_instructions(most); }
