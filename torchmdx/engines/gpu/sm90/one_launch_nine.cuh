// Nine components of a tensor, and the adjoint of every map between them: the formulas of nine.py.
#pragma once
#include "one_launch_machine.cuh"

struct N9 {
    float v[9];
};

DEV N9 add9(N9 x, N9 y)
{
#pragma unroll
    for (int k = 0; k < 9; k++) x.v[k] += y.v[k];
    return x;
}
DEV N9 scale9(N9 x, float f)
{
#pragma unroll
    for (int k = 0; k < 9; k++) x.v[k] *= f;
    return x;
}
DEV N9 scale_parts(N9 x, float s, float v, float q)
{
#pragma unroll
    for (int k = 0; k < 9; k++) x.v[k] *= k == 0 ? s : k < 4 ? v : q;
    return x;
}
DEV void dot_parts(N9 x, N9 y, float *part)
{
    part[0] = x.v[0] * y.v[0];
    part[1] = x.v[1] * y.v[1] + x.v[2] * y.v[2] + x.v[3] * y.v[3];
    part[2] = x.v[4] * y.v[4] + x.v[5] * y.v[5] + x.v[6] * y.v[6] + x.v[7] * y.v[7] + x.v[8] * y.v[8];
}
DEV void part_norms(N9 x, float *part)
{
    float third = x.v[4] + x.v[7];
    part[0] = 3.0f * x.v[0] * x.v[0];
    part[1] = 2.0f * (x.v[1] * x.v[1] + x.v[2] * x.v[2] + x.v[3] * x.v[3]);
    part[2] = x.v[4] * x.v[4] + x.v[7] * x.v[7] + third * third +
              2.0f * (x.v[5] * x.v[5] + x.v[6] * x.v[6] + x.v[8] * x.v[8]);
}
DEV float squared_norm(N9 x)
{
    float part[3];
    part_norms(x, part);
    return part[0] + part[1] + part[2];
}
DEV float reciprocal(float x)
{
#ifdef EMULATED
    return 1.0f / x;
#else
    return __fdividef(1.0f, x);
#endif
}
DEV N9 part_norms_gradient(N9 x, float g0, float g1, float g2)
{
    return N9{{6.0f * x.v[0] * g0, 4.0f * x.v[1] * g1, 4.0f * x.v[2] * g1, 4.0f * x.v[3] * g1,
               (4.0f * x.v[4] + 2.0f * x.v[7]) * g2, 4.0f * x.v[5] * g2, 4.0f * x.v[6] * g2,
               (4.0f * x.v[7] + 2.0f * x.v[4]) * g2, 4.0f * x.v[8] * g2}};
}
DEV N9 normalise_gradient(N9 x, float inverse, N9 g)
{
    float part[3];
    dot_parts(g, x, part);
    float along = -(part[0] + part[1] + part[2]);
    return add9(scale9(g, inverse), part_norms_gradient(x, along, along, along));
}
DEV N9 to_matrix(N9 c)
{
    float s = c.v[0], ax = c.v[1], ay = c.v[2], az = c.v[3], xx = c.v[4], xy = c.v[5], xz = c.v[6], yy = c.v[7],
          yz = c.v[8];
    return N9{{s + xx, xy - az, xz + ay, xy + az, s + yy, yz - ax, xz - ay, yz + ax, s - xx - yy}};
}
DEV N9 from_matrix(N9 m)
{
    float s = (m.v[0] + m.v[4] + m.v[8]) * (1.0f / 3.0f);
    return N9{{s, (m.v[7] - m.v[5]) * 0.5f, (m.v[2] - m.v[6]) * 0.5f, (m.v[3] - m.v[1]) * 0.5f, m.v[0] - s,
               (m.v[1] + m.v[3]) * 0.5f, (m.v[2] + m.v[6]) * 0.5f, m.v[4] - s, (m.v[5] + m.v[7]) * 0.5f}};
}
DEV N9 to_matrix_gradient(N9 g)
{
    float trace = (g.v[0] - g.v[4] - g.v[7]) * (1.0f / 3.0f);
    return N9{{trace + g.v[4], (g.v[5] - g.v[3]) * 0.5f, (g.v[6] + g.v[2]) * 0.5f, (g.v[5] + g.v[3]) * 0.5f,
               trace + g.v[7], (g.v[8] - g.v[1]) * 0.5f, (g.v[6] - g.v[2]) * 0.5f, (g.v[8] + g.v[1]) * 0.5f, trace}};
}
DEV N9 from_matrix_gradient(N9 m)
{
    return N9{{m.v[0] + m.v[4] + m.v[8], m.v[7] - m.v[5], m.v[2] - m.v[6], m.v[3] - m.v[1], m.v[0] - m.v[8],
               m.v[1] + m.v[3], m.v[2] + m.v[6], m.v[4] - m.v[8], m.v[5] + m.v[7]}};
}
DEV N9 transposed(N9 m) { return N9{{m.v[0], m.v[3], m.v[6], m.v[1], m.v[4], m.v[7], m.v[2], m.v[5], m.v[8]}}; }
DEV N9 matmul(N9 a, N9 b)
{
    N9 c;
#pragma unroll
    for (int r = 0; r < 9; r += 3)
#pragma unroll
        for (int k = 0; k < 3; k++) c.v[r + k] = a.v[r] * b.v[k] + a.v[r + 1] * b.v[k + 3] + a.v[r + 2] * b.v[k + 6];
    return c;
}
DEV N9 square(N9 x)
{
    N9 m = to_matrix(x);
    return from_matrix(matmul(m, m));
}
DEV N9 square_gradient(N9 x, N9 g)
{
    N9 t = transposed(to_matrix(x)), m = to_matrix_gradient(g);
    return from_matrix_gradient(add9(matmul(m, t), matmul(t, m)));
}
// Components of factor (YM + MY).
DEV N9 message_product(N9 y, N9 m, float factor)
{
    N9 a = to_matrix(y), b = to_matrix(m);
    return scale9(from_matrix(add9(matmul(a, b), matmul(b, a))), factor);
}
// The gradient in one of Y and M from the other one.
DEV N9 message_product_gradient(N9 other, N9 g, float factor)
{
    N9 a = transposed(to_matrix(other)), h = to_matrix_gradient(g);
    return scale9(from_matrix_gradient(add9(matmul(a, h), matmul(h, a))), factor);
}
// Components of 2 YM, and the gradient in Y or M: the product of the group SO(3).
DEV N9 turned_product(N9 y, N9 m) { return scale9(from_matrix(matmul(to_matrix(y), to_matrix(m))), 2.0f); }
DEV N9 turned_product_gradient(N9 other, N9 g, bool of_messages)
{
    N9 a = transposed(to_matrix(other)), h = to_matrix_gradient(g);
    return scale9(from_matrix_gradient(of_messages ? matmul(a, h) : matmul(h, a)), 2.0f);
}

DEV float sigmoid(float z)
{
#ifdef EMULATED
    return 1.0f / (1.0f + expf(-z));
#else
    return __fdividef(1.0f, 1.0f + __expf(-z));
#endif
}
DEV float silu(float z) { return z * sigmoid(z); }
DEV float silu_slope(float z)
{
    float s = sigmoid(z);
    return s * (1.0f + z * (1.0f - s));
}
