/* Nine-component tensors in registers, and the adjoint of every map between them: the formulas of
   engines/gpu/triton/nine.py. */

typedef struct { V v[9]; } NAME(nine);
#undef N9
#define N9 NAME(nine)
#undef EACH_COMPONENT
#define EACH_COMPONENT(k) _Pragma("GCC unroll 9") for (int k = 0; k < 9; k++)

INLINE N9 NAME(load9)(const REAL *p)
{
    N9 x;
    EACH_COMPONENT(k) x.v[k] = NAME(load)(p + k * SLICE);
    return x;
}

INLINE void NAME(store9)(REAL *p, N9 x) { EACH_COMPONENT(k) NAME(store)(p + k * SLICE, x.v[k]); }

INLINE N9 NAME(add9)(N9 x, N9 y)
{
    EACH_COMPONENT(k) x.v[k] += y.v[k];
    return x;
}

INLINE N9 NAME(scale9)(N9 x, V factor)
{
    EACH_COMPONENT(k) x.v[k] *= factor;
    return x;
}

/* One factor for each part. */
INLINE N9 NAME(scale_parts)(N9 x, V scalar, V vector, V symmetric)
{
    EACH_COMPONENT(k) x.v[k] *= k == 0 ? scalar : k < 4 ? vector : symmetric;
    return x;
}

/* Sums of products within each part: the gradient in a factor that scales the part. */
INLINE void NAME(dot_parts)(N9 x, N9 y, V part[3])
{
    part[0] = x.v[0] * y.v[0];
    part[1] = x.v[1] * y.v[1] + x.v[2] * y.v[2] + x.v[3] * y.v[3];
    part[2] = x.v[4] * y.v[4] + x.v[5] * y.v[5] + x.v[6] * y.v[6] + x.v[7] * y.v[7] + x.v[8] * y.v[8];
}

/* Squared Frobenius norms of the three parts. */
INLINE void NAME(part_norms)(N9 x, V part[3])
{
    V third = x.v[4] + x.v[7];
    part[0] = 3.0f * x.v[0] * x.v[0];
    part[1] = 2.0f * (x.v[1] * x.v[1] + x.v[2] * x.v[2] + x.v[3] * x.v[3]);
    part[2] = x.v[4] * x.v[4] + x.v[7] * x.v[7] + third * third +
              2.0f * (x.v[5] * x.v[5] + x.v[6] * x.v[6] + x.v[8] * x.v[8]);
}

INLINE V NAME(squared_norm)(N9 x)
{
    V part[3];
    NAME(part_norms)(x, part);
    return part[0] + part[1] + part[2];
}

/* Gradient in x of g0 |s|^2 + g1 |a|^2 + g2 |q|^2. */
INLINE N9 NAME(part_norms_gradient)(N9 x, V g0, V g1, V g2)
{
    return (N9){{6.0f * x.v[0] * g0, 4.0f * x.v[1] * g1, 4.0f * x.v[2] * g1, 4.0f * x.v[3] * g1,
                 (4.0f * x.v[4] + 2.0f * x.v[7]) * g2, 4.0f * x.v[5] * g2, 4.0f * x.v[6] * g2,
                 (4.0f * x.v[7] + 2.0f * x.v[4]) * g2, 4.0f * x.v[8] * g2}};
}

/* Gradient in X from the gradient g in X / (|X|^2 + 1), given the latter and inverse = 1 / (|X|^2 + 1). */
INLINE N9 NAME(normalise_gradient)(N9 x, V inverse, N9 g)
{
    V part[3];
    NAME(dot_parts)(g, x, part);
    V along = -(part[0] + part[1] + part[2]);
    return NAME(add9)(NAME(scale9)(g, inverse), NAME(part_norms_gradient)(x, along, along, along));
}

/* Nine components to nine entries, row by row. */
INLINE N9 NAME(to_matrix)(N9 c)
{
    V s = c.v[0], ax = c.v[1], ay = c.v[2], az = c.v[3], xx = c.v[4], xy = c.v[5], xz = c.v[6], yy = c.v[7],
      yz = c.v[8];
    return (N9){{s + xx, xy - az, xz + ay, xy + az, s + yy, yz - ax, xz - ay, yz + ax, s - xx - yy}};
}

INLINE N9 NAME(from_matrix)(N9 m)
{
    V s = (m.v[0] + m.v[4] + m.v[8]) * ((REAL)1 / 3);
    return (N9){{s, (m.v[7] - m.v[5]) * 0.5f, (m.v[2] - m.v[6]) * 0.5f, (m.v[3] - m.v[1]) * 0.5f, m.v[0] - s,
                 (m.v[1] + m.v[3]) * 0.5f, (m.v[2] + m.v[6]) * 0.5f, m.v[4] - s, (m.v[5] + m.v[7]) * 0.5f}};
}

/* Gradient in the entries from the gradient in the components: the adjoint of from_matrix. */
INLINE N9 NAME(to_matrix_gradient)(N9 g)
{
    V trace = (g.v[0] - g.v[4] - g.v[7]) * ((REAL)1 / 3);
    return (N9){{trace + g.v[4], (g.v[5] - g.v[3]) * 0.5f, (g.v[6] + g.v[2]) * 0.5f, (g.v[5] + g.v[3]) * 0.5f,
                 trace + g.v[7], (g.v[8] - g.v[1]) * 0.5f, (g.v[6] - g.v[2]) * 0.5f, (g.v[8] + g.v[1]) * 0.5f, trace}};
}

/* Gradient in the components from the gradient in the entries: the adjoint of to_matrix. */
INLINE N9 NAME(from_matrix_gradient)(N9 m)
{
    return (N9){{m.v[0] + m.v[4] + m.v[8], m.v[7] - m.v[5], m.v[2] - m.v[6], m.v[3] - m.v[1], m.v[0] - m.v[8],
                 m.v[1] + m.v[3], m.v[2] + m.v[6], m.v[4] - m.v[8], m.v[5] + m.v[7]}};
}

INLINE N9 NAME(transposed)(N9 m)
{
    return (N9){{m.v[0], m.v[3], m.v[6], m.v[1], m.v[4], m.v[7], m.v[2], m.v[5], m.v[8]}};
}

INLINE N9 NAME(matmul)(N9 a, N9 b)
{
    N9 c;
#pragma GCC unroll 3
    for (int r = 0; r < 9; r += 3)
#pragma GCC unroll 3
        for (int k = 0; k < 3; k++)
            c.v[r + k] = a.v[r] * b.v[k] + a.v[r + 1] * b.v[k + 3] + a.v[r + 2] * b.v[k + 6];
    return c;
}

/* Components of XX, and the gradient in X from the gradient g of XX. */
INLINE N9 NAME(square)(N9 x)
{
    N9 m = NAME(to_matrix)(x);
    return NAME(from_matrix)(NAME(matmul)(m, m));
}

INLINE N9 NAME(square_gradient)(N9 x, N9 g)
{
    N9 t = NAME(transposed)(NAME(to_matrix)(x)), m = NAME(to_matrix_gradient)(g);
    return NAME(from_matrix_gradient)(NAME(add9)(NAME(matmul)(m, t), NAME(matmul)(t, m)));
}

/* Components of factor (YM + MY) under O(3), of 2 YM under SO(3). */
INLINE N9 NAME(message_product)(N9 y, N9 m, V factor, int64_t reflections)
{
    N9 a = NAME(to_matrix)(y), b = NAME(to_matrix)(m), p = NAME(matmul)(a, b);
    if (reflections) return NAME(scale9)(NAME(from_matrix)(NAME(add9)(p, NAME(matmul)(b, a))), factor);
    return NAME(scale9)(NAME(from_matrix)(p), NAME(all)(2.0f));
}

/* Gradients in y and m from the gradient g of their product. */
INLINE void NAME(message_product_gradient)(N9 y, N9 m, N9 g, V factor, int64_t reflections, N9 *gy, N9 *gm)
{
    N9 a = NAME(transposed)(NAME(to_matrix)(y)), b = NAME(transposed)(NAME(to_matrix)(m));
    N9 h = NAME(to_matrix_gradient)(g), hb = NAME(matmul)(h, b), ah = NAME(matmul)(a, h);
    if (reflections) {
        hb = NAME(add9)(hb, NAME(matmul)(b, h));
        ah = NAME(add9)(ah, NAME(matmul)(h, a));
    } else
        factor = NAME(all)(2.0f);
    *gy = NAME(scale9)(NAME(from_matrix_gradient)(hb), factor);
    *gm = NAME(scale9)(NAME(from_matrix_gradient)(ah), factor);
}
