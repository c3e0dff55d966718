/* Vectors of LANES floats, and functions of them. Included once for each instruction set. */

typedef float NAME(vector) __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t NAME(integers) __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
#undef V
#undef I
#define V NAME(vector)
#define I NAME(integers)

INLINE V NAME(load)(const float *p) { return *(const V *)p; }
INLINE void NAME(store)(float *p, V x) { *(V *)p = x; }
INLINE V NAME(all)(float x) { return x - (V){0}; }

INLINE V NAME(choose)(I mask, V yes, V no) { return (V)((mask & (I)yes) | (~mask & (I)no)); }

INLINE float NAME(sum)(V x)
{
    /* Halves are added, so that the order of the sum does not depend on the compiler. */
    float part[LANES];
    NAME(store)(part, x);
#pragma GCC unroll 4
    for (int width = LANES / 2; width; width /= 2)
        for (int k = 0; k < width; k++) part[k] += part[k + width];
    return part[0];
}

/* exp(x), to 2 units in the last place; NaN stays NaN. */
INLINE V NAME(exp)(V x)
{
    const V high = NAME(all)(88.3f), low = NAME(all)(-87.3f), magic = NAME(all)(12582912.0f);
    x = NAME(choose)(x > high, high, x);
    x = NAME(choose)(x < low, low, x);
    V n = x * 1.44269504088896341f + magic;
    n = n - magic;
    V r = x - n * 0.693359375f;
    r = r - n * -2.12194440e-4f;
    V y = NAME(all)(1.9875691500e-4f);
    y = y * r + 1.3981999507e-3f;
    y = y * r + 8.3334519073e-3f;
    y = y * r + 4.1665795894e-2f;
    y = y * r + 1.6666665459e-1f;
    y = y * r + 5.0000001201e-1f;
    y = y * (r * r) + r + 1.0f;
    return (V)((I)y + (__builtin_convertvector(n, I) << 23));
}

INLINE V NAME(sigmoid)(V x) { return 1.0f / (1.0f + NAME(exp)(-x)); }

/* The activation of one number, and its slope: those of the rarer ones. */
static double NAME(rare)(int64_t kind, double z, int slope)
{
    double s = 1 / (1 + exp(-z)), soft = z > 30 ? z : log1p(exp(z)), t;
    switch (kind) {
    case SHIFTED_SOFTPLUS: return slope ? s : soft - 0.69314718055994530942;
    case TANH: t = tanh(z); return slope ? 1 - t * t : t;
    case MISH: t = tanh(soft); return slope ? t + z * (1 - t * t) * s : z * t;
    default: return slope ? s * (1 - s) : s;
    }
}

/* out = act(z), `count` numbers, a multiple of 16. */
static void NAME(activate)(int64_t kind, const float *z, float *out, int64_t count)
{
    if (kind == SILU || kind == SIGMOID)
        for (int64_t k = 0; k < count; k += LANES) {
            V x = NAME(load)(z + k), s = NAME(sigmoid)(x);
            if (kind == SILU) s = x * s;
            NAME(store)(out + k, s);
        }
    else
        for (int64_t k = 0; k < count; k++) out[k] = (float)NAME(rare)(kind, z[k], 0);
}

/* g = g act'(z). */
static void NAME(times_slope)(int64_t kind, const float *z, float *g, int64_t count)
{
    if (kind == SILU || kind == SIGMOID)
        for (int64_t k = 0; k < count; k += LANES) {
            V x = NAME(load)(z + k), s = NAME(sigmoid)(x);
            V rest = 1.0f - s;
            if (kind == SILU) rest = 1.0f + x * rest;
            NAME(store)(g + k, NAME(load)(g + k) * (s * rest));
        }
    else
        for (int64_t k = 0; k < count; k++) g[k] *= (float)NAME(rare)(kind, z[k], 1);
}
