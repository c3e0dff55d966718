/* Pairs within a radius, by bins, for one system after the other: any cell, any periodic directions.

   Atoms are sorted into bins no narrower than the radius where the cell allows it. A row visits the bins around its
   atom's; along a periodic direction bin b stands for bin b mod n of the image floor(b / n), so cells smaller than the
   radius need no special case. Along other directions bins cover the extent of the atoms. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
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
    int32_t *numbers; /* [5 * atoms + bins] */
    int64_t bins;     /* for which numbers has room */
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

/* The pairs of system s. at: edges found so far. Returns their new number, or -1 where another search must serve. */
static int64_t search_system(const struct request *q, int64_t s, int64_t at)
{
    const int64_t first = q->first[s], count = q->first[s + 1] - first;
    struct frame f;
    if (!find_frame(q, s, &f)) return -1;
    double *x = q->room, *sorted = q->room + 4 * q->atoms; /* [count][3] each, wrapped; sorted by bin */
    int32_t *image = q->numbers, *bin = q->numbers + 3 * q->atoms, *order = bin + q->atoms, *start = order + q->atoms;
    double low[3] = {0}, high[3] = {0};
    for (int64_t i = 0; i < count; i++) {
        double r[3], along[3];
        for (int k = 0; k < 3; k++) r[k] = number_of(q->positions, q->wide, 3 * (first + i) + k);
        for (int k = 0; k < 3; k++) {
            along[k] = dot(r, f.dual[k]);
            if (!(fabs(along[k]) < 1e9)) return -1;
            const double whole = f.periodic[k] ? floor(along[k]) : 0;
            image[3 * i + k] = (int32_t)whole;
            along[k] -= whole;
            for (int m = 0; m < 3; m++) r[m] -= whole * f.cell[k][m];
            low[k] = i && low[k] < along[k] ? low[k] : along[k];
            high[k] = i && high[k] > along[k] ? high[k] : along[k];
        }
        memcpy(x + 3 * i, r, sizeof r);
    }
    if (!choose_bins(q, &f, count, low, high)) return -1;
    const int64_t bins = f.bins[0] * f.bins[1] * f.bins[2];
    if (bins >= q->bins) return -1;
    memset(start, 0, sizeof *start * (size_t)(bins + 1));
    for (int64_t i = 0; i < count; i++) {
        int64_t b = 0;
        for (int k = 0; k < 3; k++) b = b * f.bins[k] + bin_of(&f, k, dot(x + 3 * i, f.dual[k]));
        bin[i] = (int32_t)b;
        start[b + 1]++;
    }
    for (int64_t b = 0; b < bins; b++) start[b + 1] += start[b];
    for (int64_t i = 0; i < count; i++) { /* start[b] becomes the end of bin b, which is the start of the next */
        order[start[bin[i]]] = (int32_t)i;
        memcpy(sorted + 3 * start[bin[i]]++, x + 3 * i, 3 * sizeof *x);
    }
    const double radius2 = q->radius * q->radius;
    for (int64_t i = 0; i < count; i++) {
        const double *here = x + 3 * i;
        const int64_t mine[3] = {bin[i] / (f.bins[1] * f.bins[2]), bin[i] / f.bins[2] % f.bins[1], bin[i] % f.bins[2]};
        int64_t from[3], to[3];
        for (int k = 0; k < 3; k++) {
            from[k] = mine[k] - f.reach[k], to[k] = mine[k] + f.reach[k];
            if (!f.periodic[k]) {
                from[k] = from[k] < 0 ? 0 : from[k];
                to[k] = to[k] >= f.bins[k] ? f.bins[k] - 1 : to[k];
            }
        }
        for (int64_t a = from[0]; a <= to[0]; a++)
            for (int64_t b = from[1]; b <= to[1]; b++)
                for (int64_t c = from[2]; c <= to[2]; c++) {
                    const int64_t place[3] = {a, b, c};
                    int64_t there = 0, move[3];
                    double offset[3] = {0};
                    for (int k = 0; k < 3; k++) {
                        move[k] = place[k] >= 0 ? place[k] / f.bins[k] : -((f.bins[k] - 1 - place[k]) / f.bins[k]);
                        there = there * f.bins[k] + place[k] - move[k] * f.bins[k];
                        for (int m = 0; m < 3; m++) offset[m] += (double)move[k] * f.cell[k][m];
                    }
                    const int itself = !move[0] && !move[1] && !move[2];
                    for (int64_t n = there ? start[there - 1] : 0; n < start[there]; n++) {
                        /* Exactly opposite seen from j, so that the list has both directions of a pair or none. */
                        const double dx = sorted[3 * n] - here[0] + offset[0];
                        const double dy = sorted[3 * n + 1] - here[1] + offset[1];
                        const double dz = sorted[3 * n + 2] - here[2] + offset[2];
                        if (!(dx * dx + dy * dy + dz * dz < radius2)) continue;
                        const int64_t j = order[n];
                        if (itself && j == i) continue;
                        if (at < q->capacity) {
                            q->source[at] = (int32_t)(first + j), q->target[at] = (int32_t)(first + i);
                            for (int k = 0; k < 3; k++)
                                q->shifts[3 * at + k] = (int32_t)move[k] - image[3 * j + k] + image[3 * i + k];
                        }
                        at++;
                    }
                    if (at > q->most) return -1;
                }
        q->row_ptr[first + i + 1] = (int32_t)(at < q->capacity ? at : q->capacity);
    }
    return at;
}

/* Fills the list. Returns 0, or 1 where another search must serve: positions that are not finite, cells without
   volume or much smaller than the radius, and more than `most` edges. */
int64_t cell_list_search(const struct request *q)
{
    int64_t at = 0;
    q->row_ptr[0] = 0;
    for (int64_t s = 0; s < q->systems; s++)
        if ((at = search_system(q, s, at)) < 0) return 1;
    const int64_t kept = at < q->capacity ? at : q->capacity;
    for (int64_t e = kept; e < q->capacity; e++) {
        q->source[e] = q->target[e] = (int32_t)(q->atoms - 1);
        memset(q->shifts + 3 * e, 0, 3 * sizeof *q->shifts);
    }
    *q->num_edges = (int32_t)kept;
    *q->needed = at;
    *q->overflow = at > q->capacity;
    return 0;
}
