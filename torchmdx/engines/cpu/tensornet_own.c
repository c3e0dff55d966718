/* Messages that carry the tensors of the atom that receives them, forward and backward, for one block of atoms. */

/* The edges [from, to) of atom a of a block, and the sum of filters, which begins with that of distance 0. */
#define OWN_ROW(w, l)                                                             \
    const struct edges *edges = &(w)->edges;                                      \
    const struct layer *layer = model->each_layer + (l);                          \
    const int64_t i = first + a, from = call->row_ptr[i], to = from + edges->count[i]; \
    const int64_t here = at9 + AT9;                                               \
    const REAL *own = layer->own + s * 3 * SLICE + lane;                         \
    V total[3] = {NAME(load)(own), NAME(load)(own + SLICE), NAME(load)(own + 2 * SLICE)}

/* M_i = (sum_j f(r_ij) + f(0)) Y_i, and, in `product`, P / (|P|^2 + 1) with P the product of Y and M. */
static void NAME(own_message_sum)(const struct work *w, int64_t b, int64_t l, const V factor[], REAL *product)
{
    BLOCK(w, b);
    EACH_CHANNEL(s, a, lane) {
        OWN_ROW(w, l);
        for (int64_t e = from; e < to; e++) {
            const REAL *f = COEFFICIENTS(layer->table, edges->knot[e], s) + lane;
            const V t = NAME(all)(edges->t[e]);
#pragma GCC unroll 3
            for (int part = 0; part < 3; part++) total[part] += NAME(filter)(f + part * PART, t);
        }
        const N9 y = NAME(load9)(w->tensors.y[l] + here);
        NAME(store_message)(w, l, here, y, NAME(scale_parts)(y, total[0], total[1], total[2]), factor[a],
                            product + AT9);
    }
}

/* From the gradient g in M: adds (sum_j f(r_ij) + f(0)) g_i to that in Y_i, and sum of df/dt (g_i . Y_i) to the slope
   of each edge. */
static void NAME(own_message_gradient)(const struct work *w, int64_t b, int64_t l)
{
    BLOCK(w, b);
    EACH_CHANNEL(s, a, lane) {
        OWN_ROW(w, l);
        const N9 g = NAME(load9)(w->tensors.m[l] + here);
        V dots[3];
        NAME(dot_parts)(g, NAME(load9)(w->tensors.y[l] + here), dots);
        for (int64_t e = from; e < to; e++) {
            const REAL *f = COEFFICIENTS(layer->table, edges->knot[e], s) + lane;
            const V t = NAME(all)(edges->t[e]);
            V along = {0};
#pragma GCC unroll 3
            for (int part = 0; part < 3; part++) {
                V slope;
                total[part] += NAME(filter_and_slope)(f + part * PART, t, &slope);
                along += slope * dots[part];
            }
            edges->slope[e] += NAME(sum)(along);
        }
        REAL *gy = w->tensors.gy + here;
        NAME(store9)(gy, NAME(add9)(NAME(load9)(gy), NAME(scale_parts)(g, total[0], total[1], total[2])));
    }
}
