/* Kernels over the rows of a neighbour list: of the network of pairs, and of Coulomb energies.

   They are compiled for several instruction sets, and for float and double: name_float_v3 and so on. */

#include <math.h>
#include <stdint.h>
#include <string.h>

static const int PART_END[3] = {1, 4, 9};
static const int PART_START[3] = {0, 1, 4};

#include "kernels_threads.c"

#define EACH "../engines/cpu/kernels_each.h"
#include "../../runtime/instructions.h"

/* The number of the instruction set to use: 0 base, 1 v3, 2 v4. */
int64_t kernels_instructions(int64_t most) { return best_instructions(most); }
