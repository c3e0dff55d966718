/* Data of TensorNet's evaluation: what Python passes, and how tensors lie in memory.

   Channels come in slices of 16, padded with weights of zero; atoms in blocks. A tensor of nine components per atom is
   [blocks][slices][block][9][16] numbers, a vector per atom [blocks][slices][block][16]: what one block needs of a
   tensor is in one piece, and so are the nine components of 16 channels, which edges gather.
   Component 0 is the scalar part, 1..3 the vector, 4..8 the symmetric traceless matrix.

   A matrix of `in` by `out` channels is [out / 16][in][16]. */

#ifndef TENSORNET_H
#define TENSORNET_H
#include <math.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

/* The type of all numbers but the energies: float, or double in tensornet_double.c. TERMS: of a filter's polynomial. */
#ifndef REAL_BITS
#define REAL_BITS 32
#endif
#if REAL_BITS == 64
#define REAL double
#define REAL_INTEGER int64_t
enum { TERMS = 10 };
#else
#define REAL float
#define REAL_INTEGER int32_t
enum { TERMS = 6 };
#endif
enum { SLICE = 16, NINE = 9 * SLICE, FILTER = 3 * TERMS * SLICE, MOST_BLOCK = 16 };
#define SAME_PLACE 1e-4 /* Å, that of torchmdx/evaluation/derivatives.py: the direction of shorter edges is NaN */
enum { SILU, SHIFTED_SOFTPLUS, TANH, SIGMOID, MISH };
enum { MOST_LAYERS = 65, MOST_NETWORKS = 2, MOST_PHASES = 7 * MOST_LAYERS + 8 };

#define INLINE static inline __attribute__((always_inline))

/* A linear map: weight, its transpose and, where there is one, its bias. */
struct map {
    const REAL *weight, *back, *bias;
};

/* A layer. table: [intervals][slices][3 parts][TERMS][16]; own: [slices][3][16], the filter of distance 0.
   in, out: one matrix per part. */
struct layer {
    const REAL *table, *own;
    struct map in[3], out[3];
};

#include "tensornet2.h"

/* The weights of a potential. origin: filters are polynomials of t - origin. head_networks: 0 for a network without a head, whose features [N][width] are results, in
   `channels`, and are given a gradient. gathers: messages carry the tensors of neighbours, else those of the atom that receives
   them. charges: of a TensorNet2, else 0. Every field has eight bytes, as in engines/cpu/engine.py. */
struct model {
    int64_t slices, width, layers, intervals, head_slices, head_layers, activation, reflections;
    int64_t head_networks, readout_activation, charge_factor, gathers;
    double stretch[3], alpha, origin, cutoff, gate_epsilon, read_epsilon, scale, shift, last_bias[MOST_NETWORKS];
    const double *references;
    const REAL *real; /* [C]: 1 in real channels, 0 in padded ones */
    const REAL *targets, *sources; /* [elements][C] */
    const REAL *table, *own; /* of the embedding */
    const REAL *gate_scale, *gate_offset, *read_scale, *read_offset, *last; /* last: [networks][head channels] */
    struct map gate_in, gate_out, mix[3], read;
    const struct map *heads; /* [networks][head_layers] */
    const struct layer *each_layer;
    const struct charges *charges;
};

/* What a call evaluates. The charges of a TensorNet2 and features without a head may be given gradients before the
   backward pass, and both are calls of their own then. */
enum { WHOLE, FORWARD, BACKWARD };

/* One evaluation. rows: of a TensorNet2, that there is memory for. wide_positions, wide_cell, wide_charge: float64 instead of float32. channels, pull: 0, or charges
   [N][(layers + 1) K] and gradients in them. */
struct call {
    int64_t atoms, systems, capacity, block, threads, forces, stress, wide_positions, wide_cell, wide_charge;
    int64_t stage, keep, rows;
    const void *positions, *cell, *charge;
    const int64_t *numbers, *system;
    const int32_t *row_ptr, *source, *shifts;
    const int32_t *hops; /* of a domain: atoms with 0 have energies; or 0: all have */
    char *scratch;
    double *energy, *energies, *virial;
    REAL *force, *channels;
    const REAL *pull;
    REAL *last_inputs; /* 0, or [N][last_size]: the inputs of the head's last layer, and 1, times the gate of a gated head */
    int64_t last_size;
};

/* Per edge within the cutoff, row by row: count [N] of each row, which begins at row_ptr. */
struct edges {
    int32_t *count, *source, *slot, *knot, *place, *element;
    REAL *t, *direction; /* [E], [E][8]: components 1..8 of the direction */
    REAL *stretch, *inverse; /* dx/dr and 1/r */
    double *slope; /* dE/dt that a row finds for the other directions of its edges */
    REAL *half; /* [E][3]: the part of dE/dvector that the row found */
};

struct tensors {
    REAL *a, *mixed, *hidden, *gate, *gx, *gy, *last;
    REAL *x[MOST_LAYERS], *inverse[MOST_LAYERS], *y[MOST_LAYERS], *m[MOST_LAYERS], *d[MOST_LAYERS];
    double *virials; /* [N][9] */
};

struct work {
    const struct model *model;
    const struct call *call;
    struct edges edges;
    struct tensors tensors;
    struct charge_tensors charges;
    char *room; /* of threads, room_bytes each, of which a TensorNet uses room_reals numbers */
    int64_t room_bytes, room_reals, blocks, block9, block1; /* numbers of a block of a tensor, and of one of its vectors */
    int64_t participants, rows_found;
    atomic_long ticket[MOST_PHASES], arrived[MOST_PHASES];
};

INLINE double number_of(const void *values, int64_t wide, int64_t k)
{
    return wide ? ((const double *)values)[k] : (double)((const float *)values)[k];
}

/* Whether an atom has an energy. */
INLINE int owned(const struct call *call, int64_t i)
{
    return !call->hops || !call->hops[i];
}

#endif
