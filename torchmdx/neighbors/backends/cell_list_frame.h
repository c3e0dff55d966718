/* What a search is asked, and the bins of one system. */

#ifndef CELL_LIST_FRAME_H
#define CELL_LIST_FRAME_H
#include <math.h>
#include <stdint.h>
#include <string.h>

/* Every field has eight bytes, as in cell_list.py. wide: positions and cell are float64 instead of float32. */
struct request {
    int64_t systems, atoms, capacity, most, wide;
    double radius;
    const void *positions, *cell;
    const unsigned char *periodic; /* [systems][3] */
    const int64_t *first;          /* [systems + 1]: the first atom of each system */
    int32_t *row_ptr, *source, *target, *shifts, *num_edges;
    int64_t *needed;
    unsigned char *overflow;
    double *room;     /* [8 * atoms] */
    int32_t *numbers; /* [8 * atoms + bins] */
    int64_t bins;     /* for which numbers has room */
    int64_t instructions; /* the most to use, as in instructions.h */
};

/* A lattice and its dual, with unit vectors for directions that are not periodic. */
struct frame {
    double cell[3][3], dual[3][3], height[3];
    int64_t bins[3], reach[3];
    double low[3], scale[3];
    int periodic[3];
};

static double number_of(const void *values, int64_t wide, int64_t k)
{
    return wide ? ((const double *)values)[k] : (double)((const float *)values)[k];
}

static void cross(const double *a, const double *b, double *c)
{
    c[0] = a[1] * b[2] - a[2] * b[1], c[1] = a[2] * b[0] - a[0] * b[2], c[2] = a[0] * b[1] - a[1] * b[0];
}

static double dot(const double *a, const double *b) { return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]; }

/* A unit vector orthogonal to `used` other vectors, of which at most two are given. Returns 0 where they are parallel. */
static int orthogonal(const double *a, const double *b, int used, double *out)
{
    if (used == 2)
        cross(a, b, out);
    else if (used == 1) {
        double axis[3] = {0};
        int smallest = 0;
        for (int k = 1; k < 3; k++)
            if (fabs(a[k]) < fabs(a[smallest])) smallest = k;
        axis[smallest] = 1;
        cross(a, axis, out);
    }
    const double size = sqrt(dot(out, out));
    if (!(size > 1e-12)) return 0;
    for (int k = 0; k < 3; k++) out[k] /= size;
    return 1;
}

/* Completes the lattice of system s and finds its dual. Returns 0 for a cell without volume. */
static int find_frame(const struct request *q, int64_t s, struct frame *f)
{
    int rows = 0;
    const double *known[3];
    for (int k = 0; k < 3; k++) {
        f->periodic[k] = q->periodic[3 * s + k];
        for (int m = 0; m < 3; m++) f->cell[k][m] = number_of(q->cell, q->wide, 9 * s + 3 * k + m);
        if (f->periodic[k]) known[rows++] = f->cell[k];
    }
    for (int k = 0; k < 3; k++) {
        if (f->periodic[k]) continue;
        if (rows == 0) {
            const double x[3] = {k == 0, k == 1, k == 2};
            memcpy(f->cell[k], x, sizeof x);
        } else if (!orthogonal(known[0], rows > 1 ? known[1] : 0, rows, f->cell[k]))
            return 0;
        known[rows++] = f->cell[k];
    }
    double normal[3];
    cross(f->cell[1], f->cell[2], normal);
    const double volume = dot(f->cell[0], normal);
    for (int k = 0; k < 3; k++) {
        cross(f->cell[(k + 1) % 3], f->cell[(k + 2) % 3], f->dual[k]);
        for (int m = 0; m < 3; m++) f->dual[k][m] /= volume;
        f->height[k] = 1 / sqrt(dot(f->dual[k], f->dual[k]));
        if (!(f->height[k] > 0) || !isfinite(f->height[k])) return 0;
    }
    return 1;
}

/* Chooses bins for `count` atoms whose coordinates span low to high. Returns 0 if there would be too many images. */
static int choose_bins(const struct request *q, struct frame *f, int64_t count, const double *low, const double *high)
{
    double total = 1;
    for (int k = 0; k < 3; k++) {
        const double extent = f->periodic[k] ? f->height[k] : (high[k] - low[k]) * f->height[k];
        double bins = floor(extent / (q->radius * (1 + 1e-9))); /* an atom may be rounded into the next bin */
        bins = bins < 1 ? 1 : bins > 1024 ? 1024 : bins;
        f->bins[k] = (int64_t)bins;
        total *= bins;
    }
    while (total > (double)(count + 1)) { /* empty bins take time too */
        int widest = 0;
        for (int k = 1; k < 3; k++)
            if (f->bins[k] > f->bins[widest]) widest = k;
        total /= (double)f->bins[widest];
        f->bins[widest] = (f->bins[widest] + 1) / 2;
        total *= (double)f->bins[widest];
    }
    for (int k = 0; k < 3; k++) {
        f->low[k] = f->periodic[k] ? 0 : low[k];
        const double extent = f->periodic[k] ? 1 : high[k] - low[k];
        f->scale[k] = (double)f->bins[k] / (extent > 0 ? extent : 1);
        const double width = f->height[k] / f->scale[k], reach = ceil(q->radius * (1 + 1e-9) / width);
        if (f->periodic[k] && !(q->radius / f->height[k] < 16)) return 0;
        f->reach[k] = f->periodic[k] || reach < (double)f->bins[k] ? (int64_t)reach : f->bins[k];
    }
    return 1;
}

static int64_t bin_of(const struct frame *f, int k, double along)
{
    const double b = floor((along - f->low[k]) * f->scale[k]);
    return b < 0 ? 0 : b >= (double)f->bins[k] ? f->bins[k] - 1 : (int64_t)b;
}

#endif
