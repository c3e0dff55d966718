/* Vectors of LANES numbers, and functions of them. Included once for each instruction set. */

#ifndef MANTISSA
/* exp(r) = 1 + r + r^2 p(r) for |r| up to log(2) / 2. LOG_2 has few digits, so that its products are exact. */
#if REAL_BITS == 64
#define MANTISSA 52
#define EXP_HIGH 709.0
#define EXP_LOW -708.0
#define LOG_2 6.93145751953125e-1
#define LOG_2_REST 1.42860682030941723212e-6
static const REAL EXP_TERMS[] = {1.0 / 6227020800, 1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320,
                                 1.0 / 5040, 1.0 / 720, 1.0 / 120, 1.0 / 24, 1.0 / 6, 1.0 / 2};
#else
#define MANTISSA 23
#define EXP_HIGH 88.3f
#define EXP_LOW -87.3f
#define LOG_2 0.693359375f
#define LOG_2_REST -2.12194440e-4f
static const REAL EXP_TERMS[] = {1.9875691500e-4f, 1.3981999507e-3f, 8.3334519073e-3f,
                                 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f};
#endif
#endif

typedef REAL NAME(vector) __attribute__((vector_size(REAL_BITS / 8 * LANES), aligned(REAL_BITS / 8), may_alias));
typedef REAL_INTEGER NAME(integers) __attribute__((vector_size(REAL_BITS / 8 * LANES), aligned(REAL_BITS / 8), may_alias));
#undef V
#undef I
#define V NAME(vector)
#define I NAME(integers)

INLINE V NAME(load)(const REAL *p) { return *(const V *)p; }
INLINE void NAME(store)(REAL *p, V x) { *(V *)p = x; }
INLINE V NAME(all)(REAL x) { return x - (V){0}; }

INLINE V NAME(choose)(I mask, V yes, V no) { return (V)((mask & (I)yes) | (~mask & (I)no)); }

INLINE REAL NAME(sum)(V x)
{
    /* Halves are added, so that the order of the sum does not depend on the compiler. */
    REAL part[LANES];
    NAME(store)(part, x);
#pragma GCC unroll 4
    for (int width = LANES / 2; width; width /= 2)
        for (int k = 0; k < width; k++) part[k] += part[k + width];
    return part[0];
}

/* exp(x), to 2 units in the last place; NaN stays NaN. */
INLINE V NAME(exp)(V x)
{
    const V high = NAME(all)(EXP_HIGH), low = NAME(all)(EXP_LOW), magic = NAME(all)((REAL)3 * ((int64_t)1 << (MANTISSA - 1)));
    V held = NAME(choose)(x > high, high, x);
    held = NAME(choose)(held < low, low, held);
    V n = held * (REAL)1.44269504088896341 + magic; /* the nearest whole number, in the low bits */
    const I power = (I)n << MANTISSA;
    n = n - magic;
    V r = held - n * LOG_2;
    r = r - n * LOG_2_REST;
    V y = NAME(all)(EXP_TERMS[0]);
#pragma GCC unroll 16
    for (int k = 1; k < (int)(sizeof EXP_TERMS / sizeof *EXP_TERMS); k++) y = y * r + EXP_TERMS[k];
    y = y * (r * r) + r + 1.0f;
    return NAME(choose)(x == x, (V)((I)y + power), x);
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
static void NAME(activate)(int64_t kind, const REAL *z, REAL *out, int64_t count)
{
    if (kind == SILU || kind == SIGMOID)
        for (int64_t k = 0; k < count; k += LANES) {
            V x = NAME(load)(z + k), s = NAME(sigmoid)(x);
            if (kind == SILU) s = x * s;
            NAME(store)(out + k, s);
        }
    else
        for (int64_t k = 0; k < count; k++) out[k] = (REAL)NAME(rare)(kind, z[k], 0);
}

/* g = g act'(z). */
static void NAME(times_slope)(int64_t kind, const REAL *z, REAL *g, int64_t count)
{
    if (kind == SILU || kind == SIGMOID)
        for (int64_t k = 0; k < count; k += LANES) {
            V x = NAME(load)(z + k), s = NAME(sigmoid)(x);
            V rest = 1.0f - s;
            if (kind == SILU) rest = 1.0f + x * rest;
            NAME(store)(g + k, NAME(load)(g + k) * (s * rest));
        }
    else
        for (int64_t k = 0; k < count; k++) g[k] *= (REAL)NAME(rare)(kind, z[k], 1);
}
