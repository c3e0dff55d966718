/* The code of one evaluation, for the instruction set that NAME, LANES, ROWS and COLUMNS describe. */
#include "tensornet_vectors.h"
#include "tensornet_nine.c"
#include "tensornet_product.c"
#include "tensornet_edges.c"
#include "tensornet_atoms.c"
#include "tensornet_head.c"
#include "tensornet_gradient.c"
#include "tensornet_chain.c"
