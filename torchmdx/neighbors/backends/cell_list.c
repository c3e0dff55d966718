/* Pairs within a radius, by bins, for one system after the other: any cell, any periodic directions.

   Atoms are sorted into bins no narrower than the radius where the cell allows it. A row visits the bins around its
   atom's; along a periodic direction bin b stands for bin b mod n of the image floor(b / n), so cells smaller than the
   radius need no special case. Along other directions bins cover the extent of the atoms. */

#include "cell_list_frame.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { RUN = 256 }; /* atoms whose distances are computed at once */

#define NAME IN_SET
#define EACH "../neighbors/backends/cell_list_near.h"
#include "../../runtime/instructions.h"

typedef int64_t (*near_function)(const double *, const double *, const double *, int64_t, const double *,
                                 const double *, double, int32_t *);

/* Atoms of a system sorted by bin: their numbers in it, the images that they are wrapped from, and coordinates. */
struct sorted {
    int32_t *order, *image[3];
    double *at[3];
};

/* Stores edges from the `kept` found atoms of a run that begins at n. base: what shifts are from the image 0. itself: an
   atom that has no edge, or -1. Returns the new number of edges, of which those beyond the capacity are only counted. */
static int64_t store_run(const struct request *q, int64_t at, const struct sorted *sorted, int64_t n,
                         const int32_t *found, int64_t kept, int64_t first, int64_t itself, const int32_t *base)
{
    for (int64_t k = 0; k < kept; k++) {
        const int64_t m = n + found[k], j = sorted->order[m];
        if (j == itself) continue;
        if (at < q->capacity) {
            int32_t *shift = q->shifts + 3 * at;
            q->source[at] = (int32_t)(first + j);
            for (int d = 0; d < 3; d++) shift[d] = base[d] - sorted->image[d][m];
        }
        at++;
    }
    return at;
}

/* The pairs of system s. at: edges found so far. Returns their new number, or -1 where another search must serve. */
static int64_t search_system(const struct request *q, near_function near, int64_t s, int64_t at)
{
    const int64_t first = q->first[s], count = q->first[s + 1] - first;
    struct frame f;
    if (!find_frame(q, s, &f)) return -1;
    double *x = q->room; /* [count][3], wrapped */
    struct sorted sorted;
    int32_t *image = q->numbers, *bin = q->numbers + 6 * q->atoms, *start = bin + 2 * q->atoms;
    sorted.order = bin + q->atoms;
    for (int k = 0; k < 3; k++)
        sorted.at[k] = x + (3 + k) * q->atoms, sorted.image[k] = q->numbers + (3 + k) * q->atoms;
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
        const int32_t place = start[bin[i]]++;
        sorted.order[place] = (int32_t)i;
        for (int k = 0; k < 3; k++) sorted.at[k][place] = x[3 * i + k], sorted.image[k][place] = image[3 * i + k];
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
                for (int64_t c = from[2], end; c <= to[2]; c = end) {
                    const int64_t place[3] = {a, b, c};
                    int64_t there = 0, move[3];
                    double offset[3] = {0};
                    for (int k = 0; k < 3; k++) {
                        move[k] = place[k] < 0            ? -((f.bins[k] - 1 - place[k]) / f.bins[k])
                                  : place[k] < f.bins[k] ? 0
                                                         : place[k] / f.bins[k];
                        there = there * f.bins[k] + place[k] - move[k] * f.bins[k];
                        for (int m = 0; m < 3; m++) offset[m] += (double)move[k] * f.cell[k][m];
                    }
                    /* The bins of the same image are adjacent. */
                    end = (move[2] + 1) * f.bins[2];
                    end = end > to[2] ? to[2] + 1 : end;
                    const int64_t last = start[there + end - c - 1];
                    const int64_t itself = !move[0] && !move[1] && !move[2] ? i : -1;
                    int32_t base[3];
                    for (int k = 0; k < 3; k++) base[k] = (int32_t)move[k] + image[3 * i + k];
                    for (int64_t n = there ? start[there - 1] : 0; n < last; n += RUN) {
                        int32_t found[RUN + 8]; /* vectors are stored whole */
                        const int64_t size = last - n < RUN ? last - n : RUN;
                        const int64_t kept = near(sorted.at[0] + n, sorted.at[1] + n, sorted.at[2] + n, size, here,
                                                  offset, radius2, found);
                        at = store_run(q, at, &sorted, n, found, kept, first, itself, base);
                    }
                    if (at > q->most) return -1;
                }
        const int64_t end = at < q->capacity ? at : q->capacity;
        for (int64_t e = q->row_ptr[first + i]; e < end; e++) q->target[e] = (int32_t)(first + i);
        q->row_ptr[first + i + 1] = (int32_t)end;
    }
    return at;
}

/* Fills the list. Returns 0, or 1 where another search must serve: positions that are not finite, cells without
   volume or much smaller than the radius, and more than `most` edges. */
int64_t cell_list_search(const struct request *q)
{
    near_function near = near_base;
    int64_t at = 0;
#if defined(__x86_64__)
    const int64_t best = best_instructions(q->instructions);
    near = best == 2 ? near_v4 : best == 1 ? near_v3 : near_base;
#endif
    q->row_ptr[0] = 0;
    for (int64_t s = 0; s < q->systems; s++)
        if ((at = search_system(q, near, s, at)) < 0) return 1;
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
