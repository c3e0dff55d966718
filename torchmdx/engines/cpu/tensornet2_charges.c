/* Charges of atoms, as in torchmdx/models/charge_equilibration.py, and the gradient through them.

   Sums over the atoms of a system run in the order of the atoms, in float64. */

/* Where the charges of a block are, and its vectors of charges. */
#define CHARGES(w, b)                                                          \
    BLOCK(w, b);                                                               \
    const struct charges *charges = model->charges;                            \
    const struct charge_tensors *c = &(w)->charges;                            \
    const int64_t groups = charges->slices, atq = (b) * groups * stride1;      \
    (void)c, (void)groups, (void)atq

/* X of layer l. */
INLINE N9 NAME(tensor)(const struct work *w, int64_t l, int64_t at9, int64_t at1)
{
    const N9 x = NAME(load9)(w->tensors.x[l] + at9);
    if (l == w->model->layers) return x;
    return NAME(scale9)(x, 1.0f / NAME(load)(w->tensors.inverse[l] + at1));
}

/* The scalar part and the squared norms of the other two, [3][slices][block][16]. */
static void NAME(charge_norms)(const struct work *w, int64_t b, int64_t l, REAL *norms)
{
    BLOCK(w, b);
    EACH_CHANNEL(s, a, lane) {
        const N9 x = NAME(tensor)(w, l, at9 + AT9, at1 + AT1);
        V part[3];
        NAME(part_norms)(x, part);
        part[0] = x.v[0];
        for (int k = 0; k < 3; k++) NAME(store)(norms + k * slices * stride1 + AT1, part[k]);
    }
}

/* Proposed charges and roots of weights from X_l. */
static void NAME(propose)(const struct work *w, int64_t b, int64_t l, struct NAME(room) *room)
{
    CHARGES(w, b);
    const struct equilibration *q = charges->equilibrations + l;
    const struct map *maps = q->maps;
    REAL *first_z = c->first[l] + at1, *second_z = c->second[l] + at1;
    NAME(charge_norms)(w, b, l, room->wide);
    NAME(standardise)(w, b, room->wide, 3, q->scale, q->offset, q->epsilon);
    NAME(linear)(w, b, room, room->wide, 3 * slices, maps[0].weight, maps[0].bias, slices, first_z);
    NAME(activate_all)(w, b, first_z, room->wide, slices);
    NAME(linear)(w, b, room, room->wide, slices, maps[1].weight, maps[1].bias, slices, second_z);
    NAME(activate_all)(w, b, second_z, room->wide, slices);
    NAME(linear)(w, b, room, room->wide, slices, maps[2].weight, maps[2].bias, 2 * groups, c->proposed[l] + 2 * atq);
}

/* The first atom of system s or of a later one. */
INLINE int64_t NAME(first_atom)(const struct call *call, int64_t s)
{
    int64_t low = 0, high = call->atoms;
    while (low < high) {
        const int64_t middle = (low + high) / 2;
        if (call->system[middle] < s)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The slice k of the charges of atom i in a tensor of `parts` vectors of charges. */
INLINE int64_t NAME(charge_at)(const struct work *w, int64_t i, int64_t parts, int64_t k)
{
    const int64_t block = w->call->block, groups = parts * w->model->charges->slices;
    return ((i / block * groups + k) * block + i % block) * SLICE;
}

/* Missing charge by the sum of weights, and that sum, of system s before layer l. */
static void NAME(charge_sums)(const struct work *w, int64_t s, int64_t l)
{
    const struct call *call = w->call;
    const struct charges *charges = w->model->charges;
    const int64_t start = NAME(first_atom)(call, s), end = NAME(first_atom)(call, s + 1), groups = charges->slices;
    const double total = number_of(call->charge, call->wide_charge, s);
    for (int64_t k = 0; k < groups; k++) {
        double sum[SLICE] = {0}, weight[SLICE] = {0};
        for (int64_t i = start; i < end; i++) {
            const REAL *p = w->charges.proposed[l] + NAME(charge_at)(w, i, 2, k);
            const REAL *f = w->charges.proposed[l] + NAME(charge_at)(w, i, 2, groups + k);
            for (int lane = 0; lane < SLICE; lane++) {
                sum[lane] += p[lane];
                weight[lane] += (double)f[lane] * f[lane] + charges->least;
            }
        }
        double *ratio = w->charges.ratio[l] + (s * groups + k) * SLICE;
        double *whole = w->charges.whole[l] + (s * groups + k) * SLICE;
        for (int lane = 0; lane < SLICE; lane++) {
            whole[lane] = weight[lane] + charges->slack;
            ratio[lane] = (total - sum[lane]) / whole[lane];
        }
    }
}

/* Charges before layer l, their shares in the filters of the layer, and a copy for the caller. */
static void NAME(equilibrate)(const struct work *w, int64_t b, int64_t l, struct NAME(room) *room)
{
    CHARGES(w, b);
    const int64_t count = charges->count, all = (model->layers + 1) * count;
    for (int64_t a = 0; a < n; a++)
        for (int64_t k = 0; k < groups * SLICE; k++) {
            const int64_t at = k / SLICE * stride1 + a * SLICE + k % SLICE;
            const REAL *p = c->proposed[l] + 2 * atq + at;
            const double f = p[groups * stride1];
            const double ratio = c->ratio[l][call->system[first + a] * groups * SLICE + k];
            const REAL q = (REAL)(*p + (f * f + charges->least) * ratio);
            c->charges[l][atq + at] = q;
            if (call->channels && k < count) call->channels[(first + a) * all + l * count + k] = q;
        }
    if (l == model->layers) return;
    for (int k = 0; k < 2; k++)
        NAME(linear)(w, b, room, c->charges[l] + atq, groups, charges->filters[l].shares[k].weight, 0, slices,
                     (k ? c->sources : c->targets)[l] + at1);
}

/* The gradient in the charges before layer l that is given from outside, in place of or in addition to `found`. */
static void NAME(given_pull)(const struct work *w, int64_t b, int64_t l, const REAL *found)
{
    CHARGES(w, b);
    const int64_t count = charges->count, all = (model->layers + 1) * count;
    for (int64_t a = 0; a < n; a++)
        for (int64_t k = 0; k < groups * SLICE; k++) {
            const int64_t at = k / SLICE * stride1 + a * SLICE + k % SLICE;
            REAL g = found ? found[at] : 0;
            if (call->pull && k < count) g += call->pull[(first + a) * all + l * count + k];
            c->gradient[atq + at] = g;
        }
}

/* Sum of gradients times weights by the sum of weights, of system s. */
static void NAME(charge_levels)(const struct work *w, int64_t s, int64_t l)
{
    const struct charges *charges = w->model->charges;
    const int64_t start = NAME(first_atom)(w->call, s), end = NAME(first_atom)(w->call, s + 1), groups = charges->slices;
    for (int64_t k = 0; k < groups; k++) {
        double sum[SLICE] = {0};
        for (int64_t i = start; i < end; i++) {
            const REAL *g = w->charges.gradient + NAME(charge_at)(w, i, 1, k);
            const REAL *f = w->charges.proposed[l] + NAME(charge_at)(w, i, 2, groups + k);
            for (int lane = 0; lane < SLICE; lane++) sum[lane] += g[lane] * ((double)f[lane] * f[lane] + charges->least);
        }
        const int64_t at = (s * groups + k) * SLICE;
        for (int lane = 0; lane < SLICE; lane++) w->charges.level[at + lane] = sum[lane] / w->charges.whole[l][at + lane];
    }
}

/* Adds to the gradient in X_l that through the charges. */
static void NAME(charge_gradient)(const struct work *w, int64_t b, int64_t l, struct NAME(room) *room)
{
    CHARGES(w, b);
    const struct equilibration *q = charges->equilibrations + l;
    const int64_t part = slices * stride1;
    REAL *proposed = room->charges, *gx = w->tensors.gx + at9;
    for (int64_t a = 0; a < n; a++)
        for (int64_t k = 0; k < groups * SLICE; k++) {
            const int64_t at = k / SLICE * stride1 + a * SLICE + k % SLICE, s = call->system[first + a] * groups * SLICE;
            const double g = c->gradient[atq + at] - c->level[s + k], f = c->proposed[l][2 * atq + groups * stride1 + at];
            proposed[at] = (REAL)g;
            proposed[groups * stride1 + at] = (REAL)(2 * f * c->ratio[l][s + k] * g);
        }
    NAME(linear)(w, b, room, proposed, 2 * groups, q->maps[2].back, 0, slices, room->wide);
    NAME(times_slope_all)(w, b, c->second[l] + at1, room->wide, slices);
    NAME(linear)(w, b, room, room->wide, slices, q->maps[1].back, 0, slices, room->wider);
    NAME(times_slope_all)(w, b, c->first[l] + at1, room->wider, slices);
    NAME(linear)(w, b, room, room->wider, slices, q->maps[0].back, 0, 3 * slices, room->wide);
    EACH_CHANNEL(s, a, lane)
        for (int k = 0; k < 3; k++) {
            REAL *g = room->wide + k * part + AT1;
            NAME(store)(g, NAME(load)(g) * NAME(load)(q->scale + (k * slices + s) * SLICE + lane));
        }
    NAME(charge_norms)(w, b, l, room->wider);
    NAME(standardise_gradient)(w, b, room->wider, 3, q->epsilon, room->wide);
    EACH_CHANNEL(s, a, lane) {
        const REAL *g = room->wide + AT1;
        const N9 x = NAME(tensor)(w, l, at9 + AT9, at1 + AT1);
        N9 through = NAME(part_norms_gradient)(x, (V){0}, NAME(load)(g + part), NAME(load)(g + 2 * part));
        through.v[0] = NAME(load)(g);
        NAME(store9)(gx + AT9, NAME(add9)(NAME(load9)(gx + AT9), through));
    }
}
