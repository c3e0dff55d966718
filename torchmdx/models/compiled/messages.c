/* Message sums of TensorNet from tabulated filters, for rows [first, last) of a neighbour list.

   A filter is a piecewise polynomial: in interval k, with t in [0,1), f(t) = sum_p a_p t^p. table is
   [intervals][terms][3][C], a_0 first; scalar, vector, symmetric part.
   Tensors are [N][9][C]: component 0 is the scalar part, 1..3 the vector, 4..8 the symmetric part.

   Included twice, with REAL float and double; NAME(f) appends the type. Part k has the components PART_START[k] up to
   PART_END[k]. No library is called: threads are the
   caller's business, who gives each its own rows. Every output element is written by one row only. */

/* f and, where df is not null, df/dt of one part at one edge; row is the edge's interval. */
static inline void NAME(filter)(const REAL *restrict row, long terms, long part, long C, REAL t, REAL *restrict f,
                                REAL *restrict df)
{
    const REAL *a = row + part * C;
    for (long c = 0; c < C; c++) f[c] = a[(terms - 1) * 3 * C + c];
    if (df)
        for (long c = 0; c < C; c++) df[c] = 0;
    for (long p = terms - 2; p >= 0; p--) {
        const REAL *restrict b = a + p * 3 * C;
        if (df)
            for (long c = 0; c < C; c++) df[c] = df[c] * t + f[c];
        for (long c = 0; c < C; c++) f[c] = f[c] * t + b[c];
    }
}

/* out_i += sum_j f(r_ij) in_j: messages, and, the list being symmetric, also their gradient. */
void NAME(gather)(long first, long last, long C, long terms, const int *row_ptr, const int *source, const int *interval, const REAL *t,
                  const REAL *table, const REAL *in, REAL *out, REAL *scratch)
{
    for (long i = first; i < last; i++)
        for (long e = row_ptr[i]; e < row_ptr[i + 1]; e++)
            for (long part = 0; part < 3; part++) {
                NAME(filter)(table + 3 * terms * C * (long)interval[e], terms, part, C, t[e], scratch, 0);
                for (long q = PART_START[part]; q < PART_END[part]; q++) {
                    const REAL *restrict a = in + (9 * (long)source[e] + q) * C;
                    REAL *restrict o = out + (9 * i + q) * C;
                    for (long c = 0; c < C; c++) o[c] += scratch[c] * a[c];
                }
            }
}

/* The gradient of messages: grad_y_i += sum_j f(r_ij) g_j, for the list is symmetric, and
   slope_e = sum over parts and channels of df/dt (g_i . y_j), by t of edge e. */
void NAME(gather_back)(long first, long last, long C, long terms, const int *row_ptr, const int *source,
                       const int *interval, const REAL *t, const REAL *table, const REAL *y, const REAL *g,
                       REAL *grad_y, REAL *slope, REAL *scratch)
{
    REAL *f = scratch, *df = scratch + C, *dot = scratch + 2 * C;
    for (long i = first; i < last; i++)
        for (long e = row_ptr[i]; e < row_ptr[i + 1]; e++) {
            REAL sum = 0;
            for (long part = 0; part < 3; part++) {
                NAME(filter)(table + 3 * terms * C * (long)interval[e], terms, part, C, t[e], f, df);
                for (long c = 0; c < C; c++) dot[c] = 0;
                for (long q = PART_START[part]; q < PART_END[part]; q++) {
                    const REAL *restrict yj = y + (9 * (long)source[e] + q) * C;
                    const REAL *restrict gj = g + (9 * (long)source[e] + q) * C;
                    const REAL *restrict gi = g + (9 * i + q) * C;
                    REAL *restrict o = grad_y + (9 * i + q) * C;
                    for (long c = 0; c < C; c++) {
                        o[c] += f[c] * gj[c];
                        dot[c] += yj[c] * gi[c];
                    }
                }
#pragma omp simd reduction(+ : sum)
                for (long c = 0; c < C; c++) sum += df[c] * dot[c];
            }
            slope[e] = sum;
        }
}

/* x_i += sum_j f(r_ij) (a_i + b_j) d_ij, d [E][9] the components of the edge's direction. */
void NAME(embed)(long first, long last, long C, long terms, const int *row_ptr, const int *source, const int *interval, const REAL *t,
                 const REAL *table, const REAL *a, const REAL *b, const REAL *d, REAL *x, REAL *scratch)
{
    for (long i = first; i < last; i++)
        for (long e = row_ptr[i]; e < row_ptr[i + 1]; e++) {
            const REAL *restrict ai = a + i * C, *restrict bj = b + (long)source[e] * C;
            for (long part = 0; part < 3; part++) {
                NAME(filter)(table + 3 * terms * C * (long)interval[e], terms, part, C, t[e], scratch, 0);
                for (long c = 0; c < C; c++) scratch[c] *= ai[c] + bj[c];
                for (long q = PART_START[part]; q < PART_END[part]; q++) {
                    REAL *restrict o = x + (9 * i + q) * C;
                    const REAL w = d[9 * e + q];
                    for (long c = 0; c < C; c++) o[c] += w * scratch[c];
                }
            }
        }
}

/* Derivatives of sum_i g_i . x_i by t of each edge, slope [E], and by its direction components, grad_d [E][9]. */
void NAME(embed_slope)(long first, long last, long C, long terms, const int *row_ptr, const int *source, const int *interval,
                       const REAL *t, const REAL *table, const REAL *a, const REAL *b, const REAL *d, const REAL *g,
                       REAL *slope, REAL *grad_d, REAL *scratch)
{
    REAL *f = scratch, *df = scratch + C, *pair = scratch + 2 * C;
    for (long i = first; i < last; i++)
        for (long e = row_ptr[i]; e < row_ptr[i + 1]; e++) {
            const REAL *restrict ai = a + i * C, *restrict bj = b + (long)source[e] * C;
            REAL sum = 0;
            for (long c = 0; c < C; c++) pair[c] = ai[c] + bj[c];
            for (long part = 0; part < 3; part++) {
                NAME(filter)(table + 3 * terms * C * (long)interval[e], terms, part, C, t[e], f, df);
                for (long q = PART_START[part]; q < PART_END[part]; q++) {
                    const REAL *restrict o = g + (9 * i + q) * C;
                    REAL value = 0, along = 0;
#pragma omp simd reduction(+ : value, along)
                    for (long c = 0; c < C; c++) {
                        value += f[c] * pair[c] * o[c];
                        along += df[c] * pair[c] * o[c];
                    }
                    grad_d[9 * e + q] = value;
                    sum += d[9 * e + q] * along;
                }
            }
            slope[e] = sum;
        }
}
