/* Derivatives of the multilinear forms, for rows [first, last) of a neighbour list.

   Filters f are [P+1][3][C]: one row per pair, and row `own` for the message of an atom to itself. code [E] is 2 * pair
   for the first edge of a pair, 2 * pair + 1 for its reverse edge. Directions d [P+1][9] are those of the first edges;
   for reverse edges the vector, components 1..3, changes its sign. z is [N][2][C]: terms of an atom as target and as
   source.

   Included by kernels_each.h, with REAL float and double; NAME(f) appends the type and the instruction set. Tensors are
   [N][9][C]; part k, scalar, vector or symmetric, has the components PART_START[k] up to PART_END[k]. kernels_threads.c
   gives each thread its own rows. Every output element is written by one row only: that of a pair by the row of its
   first edge. */

#undef FLIP
#define FLIP(q) ((q) >= 1 && (q) <= 3)

/* out_i += sum_j f_ij x_j; here code [E] is the row of f for each edge. */
static void NAME(all_message_rows)(long first, long last, long C, long own, const int *row_ptr, const int *source,
                                   const int *code, const REAL *f, const REAL *x, REAL *out)
{
    for (long i = first; i < last; i++)
        for (long e = row_ptr[i]; e < row_ptr[i + 1]; e++)
            for (long part = 0; part < 3; part++) {
                const REAL *restrict w = f + (3 * (long)code[e] + part) * C;
                for (long q = PART_START[part]; q < PART_END[part]; q++) {
                    const REAL *restrict a = x + (9 * (long)source[e] + q) * C;
                    REAL *restrict o = out + (9 * i + q) * C;
                    for (long c = 0; c < C; c++) o[c] += w[c] * a[c];
                }
            }
}

/* out_p = sum over the components of a part of x_j g_i + x_i g_j. */
static void NAME(all_message_pairs)(long first, long last, long C, long own, const int *row_ptr, const int *source,
                                    const int *code, const REAL *x, const REAL *g, REAL *out)
{
    for (long i = first; i < last; i++)
        for (long e = row_ptr[i]; e < row_ptr[i + 1]; e++) {
            if (code[e] % 2) continue;
            const REAL *xi = x + 9 * i * C, *gi = g + 9 * i * C;
            const REAL *xj = x + 9 * (long)source[e] * C, *gj = g + 9 * (long)source[e] * C;
            for (long part = 0; part < 3; part++) {
                REAL *restrict o = out + (3 * (long)(code[e] / 2) + part) * C;
                for (long q = PART_START[part]; q < PART_END[part]; q++) {
                    const REAL *restrict a = xi + q * C, *restrict b = gi + q * C;
                    const REAL *restrict u = xj + q * C, *restrict v = gj + q * C;
                    for (long c = 0; c < C; c++) o[c] += u[c] * b[c] + a[c] * v[c];
                }
            }
        }
}

/* out_e = sum over the components of a part of x_j g_i. */
static void NAME(all_message_edges)(long first, long last, long C, long own, const int *row_ptr, const int *source,
                                    const int *code, const REAL *x, const REAL *g, REAL *out)
{
    for (long i = first; i < last; i++)
        for (long e = row_ptr[i]; e < row_ptr[i + 1]; e++)
            for (long part = 0; part < 3; part++) {
                REAL *restrict o = out + (3 * e + part) * C;
                for (long c = 0; c < C; c++) o[c] = 0;
                for (long q = PART_START[part]; q < PART_END[part]; q++) {
                    const REAL *restrict b = g + (9 * i + q) * C, *restrict u = x + (9 * (long)source[e] + q) * C;
                    for (long c = 0; c < C; c++) o[c] += u[c] * b[c];
                }
            }
}

/* Rows of edges [E][K] += those of pairs a, targets t and sources s, any of which may be null. */
static void NAME(all_to_edges)(long first, long last, long K, long own, const int *row_ptr, const int *source,
                               const int *code, const REAL *a, const REAL *t, const REAL *s, REAL *out)
{
    for (long i = first; i < last; i++)
        for (long e = row_ptr[i]; e < row_ptr[i + 1]; e++) {
            REAL *restrict o = out + K * e;
            if (a)
                for (long k = 0; k < K; k++) o[k] += a[(long)(code[e] / 2) * K + k];
            if (t)
                for (long k = 0; k < K; k++) o[k] += t[i * K + k];
            if (s)
                for (long k = 0; k < K; k++) o[k] += s[(long)source[e] * K + k];
        }
}

/* Sums of g [E][K]: pairs [P][K] += both edges, targets += the edges of a row, sources += their reverse edges,
   reverse [E]. Any of the three may be null. */
static void NAME(all_from_edges)(long first, long last, long K, long own, const int *row_ptr, const int *reverse,
                                 const int *code, const REAL *g, REAL *a, REAL *t, REAL *s)
{
    for (long i = first; i < last; i++)
        for (long e = row_ptr[i]; e < row_ptr[i + 1]; e++) {
            const REAL *restrict here = g + K * e, *restrict there = g + K * (long)reverse[e];
            if (a && code[e] % 2 == 0) {
                REAL *restrict o = a + K * (long)(code[e] / 2);
                for (long k = 0; k < K; k++) o[k] += here[k] + there[k];
            }
            if (t)
                for (long k = 0; k < K; k++) t[i * K + k] += here[k];
            if (s)
                for (long k = 0; k < K; k++) s[i * K + k] += there[k];
        }
}

/* The derivative in g: out_i = sum_j d_ij f_ij (z_i0 + z_j1), and the term of the atom itself in the scalar part. */
static void NAME(all_surroundings_rows)(long first, long last, long C, long own, const int *row_ptr,
                                        const int *source, const int *code, const REAL *d, const REAL *f,
                                        const REAL *z, REAL *out, REAL *weight)
{
    for (long i = first; i < last; i++) {
        const REAL *restrict zi = z + 2 * i * C;
        REAL *restrict oi = out + 9 * i * C;
        for (long c = 0; c < C; c++) oi[c] = d[9 * own] * f[3 * own * C + c] * (zi[c] + zi[C + c]);
        for (long c = C; c < 9 * C; c++) oi[c] = 0;
        for (long e = row_ptr[i]; e < row_ptr[i + 1]; e++) {
            const long p = code[e] / 2;
            const REAL *restrict zj = z + (2 * (long)source[e] + 1) * C;
            for (long part = 0; part < 3; part++) {
                const REAL *restrict fp = f + (3 * p + part) * C;
                for (long c = 0; c < C; c++) weight[c] = fp[c] * (zi[c] + zj[c]);
                for (long q = PART_START[part]; q < PART_END[part]; q++) {
                    const REAL w = FLIP(q) && code[e] % 2 ? -d[9 * p + q] : d[9 * p + q];
                    for (long c = 0; c < C; c++) oi[q * C + c] += w * weight[c];
                }
            }
        }
    }
}

/* The derivative in z, [N][2][C]: of an atom as target along its row, as source by the reverse edges. */
static void NAME(all_surroundings_atoms)(long first, long last, long C, long own, const int *row_ptr,
                                         const int *source, const int *code, const REAL *d, const REAL *f,
                                         const REAL *g, REAL *out, REAL *weight)
{
    REAL *back = weight + C;
    for (long i = first; i < last; i++) {
        const REAL *gi = g + 9 * i * C;
        REAL *restrict oi = out + 2 * i * C;
        for (long c = 0; c < C; c++) oi[c] = oi[C + c] = d[9 * own] * f[3 * own * C + c] * gi[c];
        for (long e = row_ptr[i]; e < row_ptr[i + 1]; e++) {
            const long p = code[e] / 2;
            const REAL *gj = g + 9 * (long)source[e] * C;
            for (long part = 0; part < 3; part++) {
                const REAL *restrict fp = f + (3 * p + part) * C;
                for (long c = 0; c < C; c++) weight[c] = back[c] = 0;
                for (long q = PART_START[part]; q < PART_END[part]; q++) {
                    const REAL *restrict a = gi + q * C, *restrict b = gj + q * C;
                    const REAL there = FLIP(q) && code[e] % 2 == 0 ? -d[9 * p + q] : d[9 * p + q];
                    const REAL here = FLIP(q) ? -there : there;
                    for (long c = 0; c < C; c++) {
                        weight[c] += here * a[c];
                        back[c] += there * b[c];
                    }
                }
                for (long c = 0; c < C; c++) {
                    oi[c] += fp[c] * weight[c];
                    oi[C + c] += fp[c] * back[c];
                }
            }
        }
    }
}

/* The derivative in f: out_p = (z_i0 + z_j1) sum d_ij g_i + (z_j0 + z_i1) sum d_ji g_j, over components of a part. */
static void NAME(all_surroundings_filters)(long first, long last, long C, long own, const int *row_ptr,
                                           const int *source, const int *code, const REAL *d, const REAL *z,
                                           const REAL *g, REAL *out, REAL *weight)
{
    REAL *back = weight + C;
    for (long i = first; i < last; i++)
        for (long e = row_ptr[i]; e < row_ptr[i + 1]; e++) {
            if (code[e] % 2) continue;
            const long p = code[e] / 2, j = source[e];
            const REAL *restrict zi = z + 2 * i * C, *restrict zj = z + 2 * j * C;
            for (long part = 0; part < 3; part++) {
                REAL *restrict o = out + (3 * p + part) * C;
                for (long c = 0; c < C; c++) weight[c] = back[c] = 0;
                for (long q = PART_START[part]; q < PART_END[part]; q++) {
                    const REAL *restrict a = g + (9 * i + q) * C, *restrict b = g + (9 * j + q) * C;
                    const REAL here = d[9 * p + q], there = FLIP(q) ? -here : here;
                    for (long c = 0; c < C; c++) {
                        weight[c] += here * a[c];
                        back[c] += there * b[c];
                    }
                }
                for (long c = 0; c < C; c++)
                    o[c] = (zi[c] + zj[C + c]) * weight[c] + (zj[c] + zi[C + c]) * back[c];
            }
        }
}

/* The derivative in d: out_p [9] = sum_c f ((z_i0 + z_j1) g_i +- (z_j0 + z_i1) g_j), minus for the vector. */
static void NAME(all_surroundings_directions)(long first, long last, long C, long own, const int *row_ptr,
                                              const int *source, const int *code, const REAL *f, const REAL *z,
                                              const REAL *g, REAL *out, REAL *weight)
{
    REAL *back = weight + C;
    for (long i = first; i < last; i++)
        for (long e = row_ptr[i]; e < row_ptr[i + 1]; e++) {
            if (code[e] % 2) continue;
            const long p = code[e] / 2, j = source[e];
            const REAL *restrict zi = z + 2 * i * C, *restrict zj = z + 2 * j * C;
            for (long part = 0; part < 3; part++) {
                const REAL *restrict fp = f + (3 * p + part) * C;
                for (long c = 0; c < C; c++) {
                    weight[c] = fp[c] * (zi[c] + zj[C + c]);
                    back[c] = fp[c] * (zj[c] + zi[C + c]);
                }
                for (long q = PART_START[part]; q < PART_END[part]; q++) {
                    const REAL *restrict a = g + (9 * i + q) * C, *restrict b = g + (9 * j + q) * C;
                    REAL here = 0, there = 0;
#pragma omp simd reduction(+ : here, there)
                    for (long c = 0; c < C; c++) {
                        here += weight[c] * a[c];
                        there += back[c] * b[c];
                    }
                    out[9 * p + q] = FLIP(q) ? here - there : here + there;
                }
            }
        }
}

/* On the components of one channel, in place. Not functions: arrays whose addresses are taken are not kept in vectors. */
#undef DUAL
#define DUAL(h)                                 \
    do {                                        \
        const REAL xx = h[4], yy = h[7];        \
        h[0] *= third;                          \
        for (int q = 1; q < 9; q++) h[q] *= half; \
        h[4] = (2 * xx - yy) * third;           \
        h[7] = (2 * yy - xx) * third;           \
    } while (0)
#undef TRANSPOSE
#define TRANSPOSE(t)                             \
    do {                                         \
        for (int q = 1; q < 4; q++) t[q] = -t[q]; \
    } while (0)

/* Components of the product of matrices A and B, in slot 2; in slot 0 A is a gradient h and the result the derivative in
   the first factor, dual(A) B^T, as numbers for each component; in slot 1 B is h and the result A^T dual(B). symmetric:
   of both orders. */
INLINE void NAME(multiply)(long C, int slot, int symmetric, const REAL *restrict a,
                                                                 const REAL *restrict b, REAL *restrict out)
{
    const REAL third = (REAL)1 / 3, half = (REAL)0.5;
#pragma omp simd
    for (long c = 0; c < C; c++) {
        REAL u[9], v[9], m[9], n[9], p[9], o[9];
        for (int q = 0; q < 9; q++) {
            u[q] = a[q * C + c];
            v[q] = b[q * C + c];
        }
        if (slot == 0) {
            DUAL(u);
            TRANSPOSE(v);
        }
        if (slot == 1) {
            DUAL(v);
            TRANSPOSE(u);
        }
        m[0] = u[0] + u[4], m[1] = u[5] - u[3], m[2] = u[6] + u[2];
        m[3] = u[5] + u[3], m[4] = u[0] + u[7], m[5] = u[8] - u[1];
        m[6] = u[6] - u[2], m[7] = u[8] + u[1], m[8] = u[0] - u[4] - u[7];
        n[0] = v[0] + v[4], n[1] = v[5] - v[3], n[2] = v[6] + v[2];
        n[3] = v[5] + v[3], n[4] = v[0] + v[7], n[5] = v[8] - v[1];
        n[6] = v[6] - v[2], n[7] = v[8] + v[1], n[8] = v[0] - v[4] - v[7];
        for (int r = 0; r < 3; r++)
            for (int k = 0; k < 3; k++) {
                p[3 * r + k] = m[3 * r] * n[k] + m[3 * r + 1] * n[3 + k] + m[3 * r + 2] * n[6 + k];
                if (symmetric) p[3 * r + k] += n[3 * r] * m[k] + n[3 * r + 1] * m[3 + k] + n[3 * r + 2] * m[6 + k];
            }
        const REAL s = (p[0] + p[4] + p[8]) * third;
        o[0] = s, o[1] = (p[7] - p[5]) * half, o[2] = (p[2] - p[6]) * half, o[3] = (p[3] - p[1]) * half;
        o[4] = p[0] - s, o[5] = (p[1] + p[3]) * half, o[6] = (p[2] + p[6]) * half;
        o[7] = p[4] - s, o[8] = (p[5] + p[7]) * half;
        if (slot != 2) {
            const REAL xx = o[4], yy = o[7];
            o[0] *= 3;
            for (int q = 1; q < 9; q++) o[q] *= 2;
            o[4] = 2 * xx + yy;
            o[7] = 2 * yy + xx;
        }
        for (int q = 0; q < 9; q++) out[q * C + c] = o[q];
    }
}

/* Of atoms [first, last). The cases are written out for the compiler, which then knows slot and symmetric. */
static void NAME(all_products)(long first, long last, long C, long slot, long symmetric, const REAL *a, const REAL *b,
                               REAL *out)
{
    for (long i = first; i < last; i++) {
        const REAL *u = a + 9 * i * C, *v = b + 9 * i * C;
        REAL *o = out + 9 * i * C;
        switch (2 * slot + symmetric) {
        case 0: NAME(multiply)(C, 0, 0, u, v, o); break;
        case 1: NAME(multiply)(C, 0, 1, u, v, o); break;
        case 2: NAME(multiply)(C, 1, 0, u, v, o); break;
        case 3: NAME(multiply)(C, 1, 1, u, v, o); break;
        case 4: NAME(multiply)(C, 2, 0, u, v, o); break;
        default: NAME(multiply)(C, 2, 1, u, v, o);
        }
    }
}

/* Row q of what takes the place of b [9][C]: b itself, or with metric the numbers <., B> for each component. */
INLINE REAL NAME(lowered)(long C, int metric, long q, const REAL *restrict b,
                                                                long c)
{
    const REAL value = b[q * C + c];
    if (!metric) return value;
    if (q == 0) return 3 * value;
    if (q == 4) return 2 * value + b[7 * C + c];
    if (q == 7) return 2 * value + b[4 * C + c];
    return 2 * value;
}

/* out [parts][C] of every atom: sums of a b over the components of a part, or over all of them. */
static void NAME(all_part_sums)(long first, long last, long C, long parts, long metric, const REAL *a, const REAL *b,
                                REAL *out)
{
    for (long i = first; i < last; i++) {
        const REAL *restrict u = a + 9 * i * C, *restrict v = b + 9 * i * C;
        REAL *o = out + parts * i * C;
        for (long k = 0; k < parts * C; k++) o[k] = 0;
        for (long part = 0; part < 3; part++)
            for (long q = PART_START[part]; q < PART_END[part]; q++) {
                REAL *restrict sum = o + (parts == 3 ? part * C : 0);
                for (long c = 0; c < C; c++)
                    sum[c] += u[q * C + c] * (metric ? NAME(lowered)(C, 1, q, v, c) : v[q * C + c]);
            }
    }
}

/* out [9][C] of every atom: b times h [parts][C], part by part. */
static void NAME(all_scale_parts)(long first, long last, long C, long parts, long metric, const REAL *h,
                                  const REAL *b, REAL *out)
{
    for (long i = first; i < last; i++) {
        const REAL *restrict v = b + 9 * i * C;
        REAL *restrict o = out + 9 * i * C;
        for (long part = 0; part < 3; part++) {
            const REAL *restrict w = h + (parts * i + (parts == 3 ? part : 0)) * C;
            for (long q = PART_START[part]; q < PART_END[part]; q++)
                for (long c = 0; c < C; c++)
                    o[q * C + c] = w[c] * (metric ? NAME(lowered)(C, 1, q, v, c) : v[q * C + c]);
        }
    }
}

/* Channels, number of the pairs' slots, row_ptr, source or another edge, code. */
#undef LIST
#define LIST NUMBER(0), NUMBER(1), INTS(2), INTS(3), INTS(4)
ROWS(message_rows, LIST, REALS(5), REALS(6), REALS(7))
ROWS(message_pairs, LIST, REALS(5), REALS(6), REALS(7))
ROWS(message_edges, LIST, REALS(5), REALS(6), REALS(7))
ROWS(surroundings_rows, LIST, REALS(5), REALS(6), REALS(7), REALS(8), room)
ROWS(surroundings_atoms, LIST, REALS(5), REALS(6), REALS(7), REALS(8), room)
ROWS(surroundings_filters, LIST, REALS(5), REALS(6), REALS(7), REALS(8), room)
ROWS(surroundings_directions, LIST, REALS(5), REALS(6), REALS(7), REALS(8), room)
ROWS(to_edges, LIST, REALS(5), REALS(6), REALS(7), REALS(8))
ROWS(from_edges, LIST, REALS(5), REALS(6), REALS(7), REALS(8))
ROWS(products, NUMBER(0), NUMBER(1), NUMBER(2), REALS(3), REALS(4), REALS(5))
ROWS(part_sums, NUMBER(0), NUMBER(1), NUMBER(2), REALS(3), REALS(4), REALS(5))
ROWS(scale_parts, NUMBER(0), NUMBER(1), NUMBER(2), REALS(3), REALS(4), REALS(5))
