/* Data of TensorNet2: filters are a network of the distance and of the charges of both atoms, evaluated for every row.

   A row is an atom as its own neighbour or an edge within the cutoff. The rows of an atom follow each other, its own
   first, and the rows of the atoms each other. Of a row are kept, where forces are wanted, its filters and the slopes of
   its three activations; without `keep`, the slopes are computed again in the backward pass. */

#ifndef TENSORNET2_H
#define TENSORNET2_H

enum { MOST_ROWS = 72 }; /* that pass through the network of filters together */

/* The cutoff function for r within the cutoff, and its derivative divided by it: see cutoff_copies.py. */
static inline void cosine_cut(double r, double cutoff, REAL *cut, REAL *bend)
{
    const double angle = 1.57079632679489661923 / cutoff, cosine = cos(angle * r);
    *cut = (REAL)(cosine * cosine);
    *bend = (REAL)(-2 * angle * sin(angle * r) / cosine);
}

/* f = cut(r) act(W3 act(W2 act(z1))), where z1 is a function of the distance (table: [intervals][slices][TERMS][16]; own:
   [slices][16], at distance 0) plus linear maps of the charges of the target and of the source. */
struct filters {
    const REAL *table, *own;
    struct map shares[2], middle, last; /* K -> C, K -> C; C -> 2C -> 3C */
};

/* Charges of the atoms from the norms of the parts of X. maps: 3C -> C -> C -> 2K. */
struct equilibration {
    const REAL *scale, *offset;
    double epsilon;
    struct map maps[3];
};

/* count: K. last: whether charges are computed after the last layer too. */
struct charges {
    int64_t count, slices, last;
    double slack, least;
    const struct filters *filters;
    const struct equilibration *equilibrations;
};

/* first, second: the hidden layers before the activation. proposed: the charges and the roots of their weights.
   ratio, whole [S][K]: missing charge by the sum of weights, and that sum. level [S][K]: a sum of the backward pass. */
struct charge_tensors {
    REAL *first[MOST_LAYERS], *second[MOST_LAYERS], *proposed[MOST_LAYERS], *charges[MOST_LAYERS];
    REAL *targets[MOST_LAYERS], *sources[MOST_LAYERS]; /* shares of the charges in z1 */
    double *ratio[MOST_LAYERS], *whole[MOST_LAYERS], *level;
    REAL *gradient; /* in the charges */
    /* [rows][3C] filters, [rows][C], [rows][2C], [rows][3C] slopes; [rows][C] gradient in z1, in place of its slope */
    REAL *filters[MOST_LAYERS], *slopes[3][MOST_LAYERS], *pull[MOST_LAYERS];
    int64_t *first_row; /* of each block */
    int32_t *own_row, *row, *back; /* of atoms and edges; the other direction of an edge, -1 if there is none */
    REAL *cut, *bend; /* of edges: the cutoff function, and its derivative divided by it */
};

#endif
