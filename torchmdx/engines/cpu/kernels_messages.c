/* Message sums of TensorNet from tabulated filters, for rows [first, last) of a neighbour list.

   A filter is a piecewise polynomial: in interval k, with t in [0,1), f(t) = sum_p a_p t^p. table is
   [slices][intervals][terms][3][SLICE], a_0 first; scalar, vector, symmetric part; the last slice is padded.
   Tensors are [N][9][C]: component 0 is the scalar part, 1..3 the vector, 4..8 the symmetric part.

   One slice of the channels after the other: what a pass reads of the table, and of the tensors, stays in the
   second-level cache, an edge's coefficients are in one piece, and sums stay in registers.

   Included by kernels_each.h, with REAL float and double; NAME(f) appends the type and the instruction set. Part k has
   the components PART_START[k] up to PART_END[k]. kernels_threads.c gives each thread its own rows. Every output element
   is written by one row only; all are added to. */

#ifndef EACH_SLICE
/* A full slice has a width that the compiler knows. */
#define EACH_SLICE(call)                                   \
    for (long begin = 0; begin < C; begin += SLICE) {      \
        const long left = C - begin;                       \
        if (left >= SLICE) { const long width = SLICE; call; } \
        else { const long width = left; call; }            \
        table += 3 * SLICE * terms * intervals;            \
    }
#endif

/* f of one part at one edge; a are the part's coefficients in the edge's interval. */
INLINE void NAME(filter)(const REAL *restrict a, long terms, REAL t, REAL *restrict f)
{
    for (long c = 0; c < SLICE; c++) f[c] = a[(terms - 1) * 3 * SLICE + c];
    for (long p = terms - 2; p >= 0; p--)
        for (long c = 0; c < SLICE; c++) f[c] = f[c] * t + a[p * 3 * SLICE + c];
}

/* f and df/dt. */
INLINE void NAME(filter_and_slope)(const REAL *restrict a, long terms, REAL t, REAL *restrict f, REAL *restrict df)
{
    for (long c = 0; c < SLICE; c++) f[c] = a[(terms - 1) * 3 * SLICE + c];
    for (long c = 0; c < SLICE; c++) df[c] = 0;
    for (long p = terms - 2; p >= 0; p--)
        for (long c = 0; c < SLICE; c++) {
            df[c] = df[c] * t + f[c];
            f[c] = f[c] * t + a[p * 3 * SLICE + c];
        }
}

INLINE void NAME(gather_slice)(long first, long last, long C, long terms, const int *row_ptr, const int *source,
                               const int *interval, const REAL *t, const REAL *table, const REAL *in, REAL *out,
                               long width)
{
    for (long i = first; i < last; i++) {
        REAL sum[9][SLICE] = {{0}};
        for (long e = row_ptr[i]; e < row_ptr[i + 1]; e++) {
            const REAL *row = table + 3 * SLICE * terms * interval[e], *from = in + 9 * C * (long)source[e];
            REAL f[SLICE];
#pragma GCC unroll 3
            for (long part = 0; part < 3; part++) {
                NAME(filter)(row + part * SLICE, terms, t[e], f);
#pragma GCC unroll 5
                for (long q = PART_START[part]; q < PART_END[part]; q++)
                    for (long c = 0; c < width; c++) sum[q][c] += f[c] * from[q * C + c];
            }
        }
        for (long q = 0; q < 9; q++)
            for (long c = 0; c < width; c++) out[(9 * i + q) * C + c] += sum[q][c];
    }
}

/* out_i += sum_j f(r_ij) in_j: messages, and, the list being symmetric, also their gradient. */
static void NAME(all_gather)(long first, long last, long C, long terms, long intervals, const int *row_ptr,
                             const int *source, const int *interval, const REAL *t, const REAL *table, const REAL *in,
                             REAL *out)
{
    EACH_SLICE(NAME(gather_slice)(first, last, C, terms, row_ptr, source, interval, t, table, in + begin, out + begin,
                                  width))
}

INLINE void NAME(gather_back_slice)(long first, long last, long C, long terms, const int *row_ptr, const int *source,
                                    const int *interval, const REAL *t, const REAL *table, const REAL *y,
                                    const REAL *g, REAL *grad_y, REAL *slope, long width)
{
    for (long i = first; i < last; i++) {
        REAL sum[9][SLICE] = {{0}};
        const REAL *gi = g + 9 * C * i;
        for (long e = row_ptr[i]; e < row_ptr[i + 1]; e++) {
            const REAL *row = table + 3 * SLICE * terms * interval[e];
            const REAL *yj = y + 9 * C * (long)source[e], *gj = g + 9 * C * (long)source[e];
            REAL f[SLICE], df[SLICE], total = 0, along[SLICE] = {0};
#pragma GCC unroll 3
            for (long part = 0; part < 3; part++) {
                REAL dot[SLICE] = {0};
                NAME(filter_and_slope)(row + part * SLICE, terms, t[e], f, df);
#pragma GCC unroll 5
                for (long q = PART_START[part]; q < PART_END[part]; q++)
                    for (long c = 0; c < width; c++) {
                        sum[q][c] += f[c] * gj[q * C + c];
                        dot[c] += yj[q * C + c] * gi[q * C + c];
                    }
                for (long c = 0; c < width; c++) along[c] += df[c] * dot[c];
            }
#pragma omp simd reduction(+ : total)
            for (long c = 0; c < width; c++) total += along[c];
            slope[e] += total;
        }
        for (long q = 0; q < 9; q++)
            for (long c = 0; c < width; c++) grad_y[(9 * i + q) * C + c] += sum[q][c];
    }
}

/* The gradient of messages: grad_y_i += sum_j f(r_ij) g_j, for the list is symmetric, and
   slope_e += sum over parts and channels of df/dt (g_i . y_j), by t of edge e. */
static void NAME(all_gather_back)(long first, long last, long C, long terms, long intervals, const int *row_ptr,
                                  const int *source, const int *interval, const REAL *t, const REAL *table,
                                  const REAL *y, const REAL *g, REAL *grad_y, REAL *slope)
{
    EACH_SLICE(NAME(gather_back_slice)(first, last, C, terms, row_ptr, source, interval, t, table, y + begin,
                                       g + begin, grad_y + begin, slope, width))
}

INLINE void NAME(embed_slice)(long first, long last, long C, long terms, const int *row_ptr, const int *source,
                              const int *interval, const REAL *t, const REAL *table, const REAL *a, const REAL *b,
                              const REAL *d, REAL *x, long width)
{
    for (long i = first; i < last; i++) {
        REAL sum[9][SLICE] = {{0}};
        const REAL *ai = a + C * i;
        for (long e = row_ptr[i]; e < row_ptr[i + 1]; e++) {
            const REAL *row = table + 3 * SLICE * terms * interval[e], *bj = b + C * (long)source[e];
            REAL f[SLICE];
#pragma GCC unroll 3
            for (long part = 0; part < 3; part++) {
                NAME(filter)(row + part * SLICE, terms, t[e], f);
                for (long c = 0; c < width; c++) f[c] *= ai[c] + bj[c];
#pragma GCC unroll 5
                for (long q = PART_START[part]; q < PART_END[part]; q++) {
                    const REAL w = d[9 * e + q];
                    for (long c = 0; c < width; c++) sum[q][c] += w * f[c];
                }
            }
        }
        for (long q = 0; q < 9; q++)
            for (long c = 0; c < width; c++) x[(9 * i + q) * C + c] += sum[q][c];
    }
}

/* x_i += sum_j f(r_ij) (a_i + b_j) d_ij, d [E][9] the components of the edge's direction. */
static void NAME(all_embed)(long first, long last, long C, long terms, long intervals, const int *row_ptr,
                            const int *source, const int *interval, const REAL *t, const REAL *table, const REAL *a,
                            const REAL *b, const REAL *d, REAL *x)
{
    EACH_SLICE(NAME(embed_slice)(first, last, C, terms, row_ptr, source, interval, t, table, a + begin, b + begin, d,
                                 x + begin, width))
}

/* Adds to value[q] what a slice of channels has of f (a_i + b_j) g_i, and to along that of its slope in t. */
INLINE void NAME(embed_slope_slice)(long C, long terms, REAL t, const REAL *row, const REAL *ai, const REAL *bj,
                                    const REAL *d, const REAL *gi, REAL value[9][SLICE], REAL *along, long width)
{
    REAL f[SLICE], df[SLICE], pair[SLICE];
    for (long c = 0; c < width; c++) pair[c] = ai[c] + bj[c];
#pragma GCC unroll 3
    for (long part = 0; part < 3; part++) {
        REAL turned[SLICE] = {0};
        NAME(filter_and_slope)(row + part * SLICE, terms, t, f, df);
        for (long c = 0; c < width; c++) f[c] *= pair[c];
#pragma GCC unroll 5
        for (long q = PART_START[part]; q < PART_END[part]; q++)
            for (long c = 0; c < width; c++) {
                value[q][c] += f[c] * gi[q * C + c];
                turned[c] += d[q] * gi[q * C + c];
            }
        for (long c = 0; c < width; c++) along[c] += df[c] * pair[c] * turned[c];
    }
}

/* Derivatives of sum_i g_i . x_i: slope [E] += those by t of each edge, grad_d [E][9] += by its components. */
static void NAME(all_embed_slope)(long first, long last, long C, long terms, long intervals, const int *row_ptr,
                                  const int *source, const int *interval, const REAL *t, const REAL *table,
                                  const REAL *a, const REAL *b, const REAL *d, const REAL *g, REAL *slope,
                                  REAL *grad_d)
{
    const REAL *all = table;
    for (long i = first; i < last; i++)
        for (long e = row_ptr[i]; e < row_ptr[i + 1]; e++) {
            REAL value[9][SLICE] = {{0}}, along[SLICE] = {0}, total = 0;
            table = all + 3 * SLICE * terms * interval[e];
            EACH_SLICE(NAME(embed_slope_slice)(C, terms, t[e], table, a + C * i + begin,
                                               b + C * (long)source[e] + begin, d + 9 * e, g + 9 * C * i + begin,
                                               value, along, width))
            for (long q = 0; q < 9; q++) {
                REAL sum = 0;
#pragma omp simd reduction(+ : sum)
                for (long c = 0; c < SLICE; c++) sum += value[q][c];
                grad_d[9 * e + q] += sum;
            }
#pragma omp simd reduction(+ : total)
            for (long c = 0; c < SLICE; c++) total += along[c];
            slope[e] += total;
        }
}

/* Channels, terms, intervals, row_ptr, source, interval, t, table. */
#undef EDGES
#define EDGES NUMBER(0), NUMBER(1), NUMBER(2), INTS(3), INTS(4), INTS(5), REALS(6), REALS(7)
ROWS(gather, EDGES, REALS(8), REALS(9))
ROWS(gather_back, EDGES, REALS(8), REALS(9), REALS(10), REALS(11))
ROWS(embed, EDGES, REALS(8), REALS(9), REALS(10), REALS(11))
ROWS(embed_slope, EDGES, REALS(8), REALS(9), REALS(10), REALS(11), REALS(12), REALS(13))
