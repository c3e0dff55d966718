/* The damped Coulomb energy of torchmdx/models/priors/coulomb.py with its derivatives, for atoms [first, last).

   An atom of an open system interacts with all others of its system, another one with its edges within the cutoff.
   Every output element is written by one atom only. Included like kernels_pair_forms.c. */

#ifndef COULOMB_SETTINGS
#define COULOMB_SETTINGS
struct coulomb {
    double strength, damping, lower, upper, has_switch, cutoff, field, level, alpha;
};

/* k ((1 - d(r)) g(r) - erf(alpha r) / r) and its derivative, with g(r) = 1/r + field r^2 - level. */
static double coulomb_shape(const struct coulomb *c, double r, double *slope)
{
    double u = 1, du = 0;
    if (c->has_switch) {
        const double width = c->upper - c->lower, x = (r - c->lower) / width, pi = 3.14159265358979323846;
        u = x <= 0 ? 0 : x >= 1 ? 1 : 0.5 - 0.5 * cos(pi * x);
        du = x > 0 && x < 1 ? 0.5 * pi / width * sin(pi * x) : 0;
    } else if (r * r < (1 - 1e-3) * c->damping * c->damping) {
        const double gap = 1 - r * r / (c->damping * c->damping), d = exp(1 - 1 / gap);
        u = 1 - d;
        du = d * 2 * r / (c->damping * c->damping * gap * gap);
    }
    const double g = 1 / r + c->field * r * r - c->level;
    double far = 0, dfar = 0;
    if (c->alpha > 0) {
        const double x = c->alpha * r, two_over_root_pi = 1.12837916709551257390;
        far = erf(x) / r;
        dfar = (c->alpha * two_over_root_pi * exp(-x * x) - far) / r;
    }
    *slope = c->strength * (du * g + u * (2 * c->field * r - 1 / (r * r)) - dfar);
    return c->strength * (u * g - far);
}

/* The first atom of a system, or of a later one. */
static long coulomb_first(const int64_t *system, long atoms, int64_t s)
{
    long low = 0, high = atoms;
    while (low < high) {
        const long middle = (low + high) / 2;
        if (system[middle] < s)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}
#endif

/* Sums of an atom. */
struct NAME(coulomb_sums) {
    double energy, slope[3], virial[6];
};

/* Adds a pair whose vector points from atom i, with charges p times their weights, to atom j with charges q. */
INLINE void NAME(coulomb_pair)(const struct coulomb *c, const double v[3], long M, const REAL *restrict p,
                               const REAL *restrict q, REAL *restrict potential, struct NAME(coulomb_sums) *sums)
{
    const double r = sqrt(v[0] * v[0] + v[1] * v[1] + v[2] * v[2]);
    if (r >= c->cutoff) return;
    double slope;
    const double shape = coulomb_shape(c, r, &slope);
    const REAL factor = (REAL)shape;
    REAL dot = 0;
#pragma omp simd reduction(+ : dot)
    for (long m = 0; m < M; m++) {
        dot += p[m] * q[m];
        potential[m] += factor * q[m];
    }
    sums->energy += 0.5 * shape * (double)dot;
    const double along = slope * (double)dot / r;
    for (int k = 0, n = 0; k < 3; k++) {
        sums->slope[k] -= along * v[k];
        for (int l = k; l < 3; l++) sums->virial[n++] += 0.5 * along * v[k] * v[l];
    }
}

/* q [N][M], w [M]; open [S]; energies [N], slope [N][3], virial [N][6], pull [N][M]. */
static void NAME(all_coulomb)(long first, long last, REAL *room, long M, long atoms, const struct coulomb *c,
                              const int *row_ptr, const int *source, const int *shifts, const int64_t *system,
                              const int *open, const double *positions, const double *cells, const REAL *q,
                              const REAL *w, double *energies, double *slope, double *virial, REAL *pull)
{
    REAL *p = room, *potential = room + M;
    struct coulomb bare = *c; /* of open systems */
    bare.cutoff = INFINITY, bare.field = bare.level = bare.alpha = 0;
    for (long i = first; i < last; i++) {
        struct NAME(coulomb_sums) sums = {0};
        const double *here = positions + 3 * i, *cell = cells + 9 * system[i];
        double v[3];
        for (long m = 0; m < M; m++) p[m] = w[m] * q[i * M + m], potential[m] = 0;
        if (open[system[i]]) {
            const long end = coulomb_first(system, atoms, system[i] + 1);
            for (long j = coulomb_first(system, atoms, system[i]); j < end; j++) {
                if (j == i) continue;
                for (int k = 0; k < 3; k++) v[k] = positions[3 * j + k] - here[k];
                NAME(coulomb_pair)(&bare, v, M, p, q + j * M, potential, &sums);
            }
        } else
            for (long e = row_ptr[i]; e < row_ptr[i + 1]; e++) {
                const long j = source[e];
                const int *shift = shifts + 3 * e;
                for (int k = 0; k < 3; k++)
                    v[k] = positions[3 * j + k] - here[k] +
                           (shift[0] * cell[k] + shift[1] * cell[3 + k] + shift[2] * cell[6 + k]);
                NAME(coulomb_pair)(c, v, M, p, q + j * M, potential, &sums);
            }
        energies[i] = sums.energy;
        memcpy(slope + 3 * i, sums.slope, sizeof sums.slope);
        memcpy(virial + 6 * i, sums.virial, sizeof sums.virial);
        for (long m = 0; m < M; m++) pull[i * M + m] = w[m] * potential[m];
    }
}

#define WIDE(k) ((double *)given[k])
ROWS(coulomb, room, NUMBER(0), NUMBER(1), (const struct coulomb *)given[2], INTS(3), INTS(4), INTS(5),
     (const int64_t *)given[6], INTS(7), WIDE(8), WIDE(9), REALS(10), REALS(11), WIDE(12), WIDE(13), WIDE(14),
     REALS(15))
#undef WIDE
