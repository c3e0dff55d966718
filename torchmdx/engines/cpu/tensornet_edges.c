/* Edges: their geometry, and the sums over the edges of each atom, forward and backward, for one block of atoms.

   A filter is a piecewise polynomial of t in [0,1), less the origin: f(t) = sum_p a_p t^p. */

/* Atoms [first, first + count) of a block. */
#undef BLOCK
#define BLOCK(w, b)                                                                       \
    const struct model *model = (w)->model;                                               \
    const struct call *call = (w)->call;                                                  \
    const int64_t first = (b) * call->block;                                              \
    const int64_t n = call->atoms - first < call->block ? call->atoms - first : call->block; \
    const int64_t slices = model->slices, stride9 = call->block * NINE, stride1 = call->block * SLICE; \
    const int64_t at9 = (b) * (w)->block9, at1 = (b) * (w)->block1;                       \
    (void)first, (void)n, (void)slices, (void)stride9, (void)stride1, (void)at9, (void)at1

/* Offsets of the channels of a block's tensors of nine components, and of its vectors. */
#define EACH_CHANNEL(s, a, lane)                  \
    for (int64_t s = 0; s < slices; s++)          \
        for (int64_t a = 0; a < n; a++)           \
            for (int64_t lane = 0; lane < SLICE; lane += LANES)
#define AT9 (s * stride9 + a * NINE + lane)
#define AT1 (s * stride1 + a * SLICE + lane)

/* The edges of a row within the cutoff. Differences are taken in float64: atoms may be far from the origin. */
static void NAME(row_geometry)(const struct work *w, int64_t i)
{
    const struct model *model = w->model;
    const struct call *call = w->call;
    const struct edges *edges = &w->edges;
    double cell[9], here[3];
    for (int k = 0; k < 9; k++) cell[k] = number_of(call->cell, call->wide_cell, 9 * call->system[i] + k);
    for (int k = 0; k < 3; k++) here[k] = number_of(call->positions, call->wide_positions, 3 * i + k);
    int64_t to = call->row_ptr[i];
    for (int64_t e = call->row_ptr[i]; e < call->row_ptr[i + 1]; e++) {
        const int64_t j = call->source[e];
        const int32_t *shift = call->shifts + 3 * e;
        double v[3];
        for (int k = 0; k < 3; k++)
            v[k] = number_of(call->positions, call->wide_positions, 3 * j + k) - here[k] +
                   (shift[0] * cell[k] + shift[1] * cell[3 + k] + shift[2] * cell[6 + k]);
        const double r = sqrt(v[0] * v[0] + v[1] * v[1] + v[2] * v[2]);
        if (r >= model->cutoff) continue; /* NaN counts as inside, so that it reaches the energy */
        const double inverse = r < SAME_PLACE ? NAN : 1 / r, decay = model->stretch[2] * exp(-model->alpha * r);
        const double x = model->stretch[0] + model->stretch[1] * r + decay, last = model->intervals - 1;
        const int32_t knot = !(x > 0) ? 0 : x > last ? (int32_t)last : (int32_t)x;
        const REAL d[3] = {(REAL)(v[0] * inverse), (REAL)(v[1] * inverse), (REAL)(v[2] * inverse)};
        REAL *q = edges->direction + 8 * to;
        memcpy(q, d, sizeof d);
        q[3] = d[0] * d[0] - (REAL)1 / 3, q[4] = d[0] * d[1], q[5] = d[0] * d[2];
        q[6] = d[1] * d[1] - (REAL)1 / 3, q[7] = d[1] * d[2];
        edges->t[to] = (REAL)(x - knot - model->origin);
        edges->knot[to] = knot, edges->source[to] = (int32_t)j, edges->slot[to] = (int32_t)e;
        edges->place[to] = (int32_t)(j / call->block * model->slices * call->block + j % call->block);
        edges->element[to] = (int32_t)call->numbers[j];
        edges->stretch[to] = (REAL)(model->stretch[1] - model->alpha * decay);
        edges->inverse[to] = (REAL)inverse;
        edges->slope[to] = 0;
        to++;
    }
    edges->count[i] = (int32_t)(to - call->row_ptr[i]);
}

/* f of one part; a are the part's coefficients in the edge's interval. */
INLINE V NAME(filter)(const REAL *a, V t)
{
    V f = NAME(load)(a + (TERMS - 1) * SLICE);
#pragma GCC unroll 16
    for (int p = TERMS - 2; p >= 0; p--) f = f * t + NAME(load)(a + p * SLICE);
    return f;
}

/* f, and df/dt. */
INLINE V NAME(filter_and_slope)(const REAL *a, V t, V *slope)
{
    V f = NAME(load)(a + (TERMS - 1) * SLICE), df = f;
#pragma GCC unroll 16
    for (int p = TERMS - 2; p > 0; p--) {
        f = f * t + NAME(load)(a + p * SLICE);
        df = df * t + f;
    }
    *slope = df;
    return f * t + NAME(load)(a);
}

/* The coefficients of an edge's filters in a slice of channels. */
#define COEFFICIENTS(table, knot, s) ((table) + ((int64_t)(knot) * slices + (s)) * FILTER)
#define PART (TERMS * SLICE)

/* A_i = sum_j f(r_ij) (a_i + b_j) D_ij + f(0) (a_i + b_i) in the scalar part. */
static void NAME(embedding_sum)(const struct work *w, int64_t b)
{
    BLOCK(w, b);
    const struct edges *edges = &w->edges;
    EACH_CHANNEL(s, a, lane) {
        const int64_t i = first + a, from = call->row_ptr[i], c = s * SLICE + lane;
        const int64_t width = slices * SLICE;
        const V mine = NAME(load)(model->targets + call->numbers[i] * width + c);
        const V own = NAME(load)(model->own + s * 3 * SLICE + lane);
        N9 sum = {{own * (mine + NAME(load)(model->sources + call->numbers[i] * width + c))}};
        for (int64_t e = from; e < from + edges->count[i]; e++) {
            const REAL *f = COEFFICIENTS(model->table, edges->knot[e], s) + lane;
            const REAL *d = edges->direction + 8 * e;
            const V t = NAME(all)(edges->t[e]);
            const V pair = mine + NAME(load)(model->sources + edges->element[e] * width + c);
            const V vector = NAME(filter)(f + PART, t) * pair, symmetric = NAME(filter)(f + 2 * PART, t) * pair;
            sum.v[0] += NAME(filter)(f, t) * pair;
#pragma GCC unroll 8
            for (int k = 1; k < 9; k++) sum.v[k] += (k < 4 ? vector : symmetric) * d[k - 1];
        }
        NAME(store9)(w->tensors.a + at9 + AT9, sum);
    }
}

/* Stores M, and in `product` P / (|P|^2 + 1) with P the product of Y and M. */
INLINE void NAME(store_message)(const struct work *w, int64_t l, int64_t here, N9 y, N9 m, V factor, REAL *product)
{
    NAME(store9)(w->tensors.m[l] + here, m);
    N9 p = NAME(message_product)(y, m, factor, w->model->reflections);
    NAME(store9)(product, NAME(scale9)(p, 1.0f / (NAME(squared_norm)(p) + 1.0f)));
}

/* M_i = sum_j f(r_ij) Y_j + f(0) Y_i, and, in `product`, P / (|P|^2 + 1) with P the product of Y and M. */
static void NAME(message_sum)(const struct work *w, int64_t b, int64_t l, const V factor[], REAL *product)
{
    BLOCK(w, b);
    const struct edges *edges = &w->edges;
    const struct layer *layer = model->each_layer + l;
    EACH_CHANNEL(s, a, lane) {
        const int64_t i = first + a, from = call->row_ptr[i], here = at9 + AT9;
        const REAL *send = w->tensors.y[l] + s * stride9 + lane, *own = layer->own + s * 3 * SLICE + lane;
        const N9 y = NAME(load9)(w->tensors.y[l] + here);
        N9 m = NAME(scale_parts)(y, NAME(load)(own), NAME(load)(own + SLICE), NAME(load)(own + 2 * SLICE));
        for (int64_t e = from; e < from + edges->count[i]; e++) {
            const REAL *f = COEFFICIENTS(layer->table, edges->knot[e], s) + lane;
            const REAL *there = send + (int64_t)edges->place[e] * NINE;
            const V t = NAME(all)(edges->t[e]);
            const V vector = NAME(filter)(f + PART, t), symmetric = NAME(filter)(f + 2 * PART, t);
            m.v[0] += NAME(filter)(f, t) * NAME(load)(there);
#pragma GCC unroll 8
            for (int k = 1; k < 9; k++) m.v[k] += (k < 4 ? vector : symmetric) * NAME(load)(there + k * SLICE);
        }
        NAME(store_message)(w, l, here, y, m, factor[a], product + AT9);
    }
}

/* The gradient of messages: adds sum_j f(r_ij) g_j + f(0) g_i to that in Y_i, for the list has both directions of each
   edge; and to the slope of each edge that of its other direction, sum of df/dt (g_j . Y_i). */
static void NAME(message_gradient)(const struct work *w, int64_t b, int64_t l)
{
    BLOCK(w, b);
    const struct edges *edges = &w->edges;
    const struct layer *layer = model->each_layer + l;
    EACH_CHANNEL(s, a, lane) {
        const int64_t i = first + a, from = call->row_ptr[i], here = at9 + AT9;
        const REAL *sent = w->tensors.m[l] + s * stride9 + lane, *own = layer->own + s * 3 * SLICE + lane;
        const N9 y = NAME(load9)(w->tensors.y[l] + here);
        N9 sum = NAME(scale_parts)(NAME(load9)(w->tensors.m[l] + here), NAME(load)(own),
                                   NAME(load)(own + SLICE), NAME(load)(own + 2 * SLICE));
        for (int64_t e = from; e < from + edges->count[i]; e++) {
            const REAL *f = COEFFICIENTS(layer->table, edges->knot[e], s) + lane;
            const REAL *there = sent + (int64_t)edges->place[e] * NINE;
            const V t = NAME(all)(edges->t[e]);
            V along = {0};
#pragma GCC unroll 3
            for (int part = 0; part < 3; part++) {
                V slope, dot = {0}, value = NAME(filter_and_slope)(f + part * PART, t, &slope);
#pragma GCC unroll 5
                for (int k = part * part; k < (part + 1) * (part + 1); k++) {
                    const V g = NAME(load)(there + k * SLICE);
                    sum.v[k] += value * g;
                    dot += y.v[k] * g;
                }
                along += slope * dot;
            }
            edges->slope[e] += NAME(sum)(along);
        }
        REAL *gy = w->tensors.gy + here;
        NAME(store9)(gy, NAME(add9)(NAME(load9)(gy), sum));
    }
}

/* The part of dE/dvector of each edge that its row found: of the layers, from the slopes, and of the embedding, from
   the gradient g [slices][block][9][16] in A. */
static void NAME(edge_gradient)(const struct work *w, int64_t b, const REAL *g)
{
    BLOCK(w, b);
    const struct edges *edges = &w->edges;
    const int64_t width = slices * SLICE;
    for (int64_t a = 0; a < n; a++) {
        const int64_t i = first + a, from = call->row_ptr[i];
        for (int64_t e = from; e < from + edges->count[i]; e++) {
            const REAL *q = edges->direction + 8 * e;
            const V t = NAME(all)(edges->t[e]);
            V along = {0}, value[9] = {{0}};
            for (int64_t c = 0; c < width; c += LANES) {
                const int64_t s = c / SLICE, lane = c % SLICE;
                const REAL *f = COEFFICIENTS(model->table, edges->knot[e], s) + lane;
                const REAL *here = g + s * stride9 + a * NINE + lane;
                const V pair = NAME(load)(model->targets + call->numbers[i] * width + c) +
                               NAME(load)(model->sources + edges->element[e] * width + c);
                V turned, slope, f0 = NAME(filter_and_slope)(f, t, &slope);
                (void)f0;
                V total = slope * NAME(load)(here);
#pragma GCC unroll 2
                for (int part = 1; part < 3; part++) {
                    const V f1 = NAME(filter_and_slope)(f + part * PART, t, &slope) * pair;
                    turned = (V){0};
#pragma GCC unroll 5
                    for (int k = part * part; k < (part + 1) * (part + 1); k++) {
                        const V gk = NAME(load)(here + k * SLICE);
                        value[k] += f1 * gk;
                        turned += q[k - 1] * gk;
                    }
                    total += slope * turned;
                }
                along += total * pair;
            }
            double v[9];
            for (int k = 1; k < 9; k++) v[k] = NAME(sum)(value[k]);
            const double x = q[0], y = q[1], z = q[2], inverse = edges->inverse[e];
            const double gx = v[1] + 2 * x * v[4] + y * v[5] + z * v[6];
            const double gy = v[2] + x * v[5] + 2 * y * v[7] + z * v[8];
            const double gz = v[3] + x * v[6] + y * v[8];
            const double radial = (edges->slope[e] + NAME(sum)(along)) * edges->stretch[e] -
                                  (gx * x + gy * y + gz * z) * inverse;
            edges->half[3 * e] = (REAL)(radial * x + gx * inverse);
            edges->half[3 * e + 1] = (REAL)(radial * y + gy * inverse);
            edges->half[3 * e + 2] = (REAL)(radial * z + gz * inverse);
        }
    }
}

/* The edge of row j that is edge e of row i seen from j; -1 if there is none. */
INLINE int64_t NAME(other_direction)(const struct work *w, int64_t i, int64_t e)
{
    const struct call *call = w->call;
    const struct edges *edges = &w->edges;
    const int64_t j = edges->source[e], from = call->row_ptr[j], to = from + edges->count[j];
    const int32_t *shift = call->shifts + 3 * (int64_t)edges->slot[e], *source = edges->source;
    for (int64_t k = from; k < to;) {
        if (k + 16 <= to) { /* most of a row has other sources */
            int32_t same = 0;
            for (int u = 0; u < 16; u++) same |= source[k + u] == i;
            if (!same) {
                k += 16;
                continue;
            }
        }
        for (const int64_t stop = k + 16 < to ? k + 16 : to; k < stop; k++) {
            const int32_t *there = call->shifts + 3 * (int64_t)edges->slot[k];
            if (source[k] == i && there[0] == -shift[0] && there[1] == -shift[1] && there[2] == -shift[2]) return k;
        }
    }
    return -1;
}

/* F_i = sum of h_e - h_back over the edges of row i, where `back` is the other direction of e; and the row's virial. */
static void NAME(forces)(const struct work *w, int64_t b)
{
    BLOCK(w, b);
    const struct edges *edges = &w->edges;
    for (int64_t i = first; i < first + n; i++) {
        double force[3] = {0}, virial[9] = {0};
        for (int64_t e = call->row_ptr[i]; e < call->row_ptr[i] + edges->count[i]; e++) {
            const REAL *h = edges->half + 3 * e, *d = edges->direction + 8 * e;
            const int64_t back = NAME(other_direction)(w, i, e);
            const double r = 1 / (double)edges->inverse[e];
            for (int k = 0; k < 3; k++) {
                force[k] += h[k] - (back < 0 ? 0.0 : (double)edges->half[3 * back + k]);
                if (call->stress)
                    for (int m = 0; m < 3; m++) virial[3 * k + m] += (double)h[k] * d[m] * r;
            }
        }
        for (int k = 0; k < 3; k++) call->force[3 * i + k] = (REAL)force[k];
        if (call->stress) memcpy(w->tensors.virials + 9 * i, virial, sizeof virial);
    }
}
