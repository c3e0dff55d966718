/* The code of one evaluation for the instruction set SET, with vectors of LANES numbers, ROWS x COLUMNS at a time. */
#if SET == 2
#define LANES (512 / REAL_BITS)
#define ROWS 12
#define COLUMNS (64 / REAL_BITS)
#elif SET == 1
#define LANES (256 / REAL_BITS)
#define ROWS (192 / REAL_BITS)
#define COLUMNS 1
#else
#define LANES (128 / REAL_BITS)
#if defined(__x86_64__)
#define ROWS (64 / REAL_BITS)
#else
#define ROWS (192 / REAL_BITS)
#endif
#define COLUMNS 1
#endif
#include "tensornet_vectors.h"
#include "tensornet_nine.c"
#include "tensornet_product.c"
#include "tensornet_edges.c"
#include "tensornet_own.c"
#include "tensornet_atoms.c"
#include "tensornet_head.c"
#include "tensornet_gradient.c"
#include "tensornet_chain.c"
#include "tensornet2_charges.c"
#include "tensornet2_rows.c"
#include "tensornet2_gradient.c"
#include "tensornet2_chain.c"
#undef LANES
#undef ROWS
#undef COLUMNS
