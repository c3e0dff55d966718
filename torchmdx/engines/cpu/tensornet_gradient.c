/* The backward pass within each atom, for one block of atoms. */

/* The gradient in A from gx, the gradient in X_0; then that in the edges. */
static void NAME(embed_gradient)(const struct work *w, int64_t b, struct NAME(room) *room)
{
    BLOCK(w, b);
    const struct tensors *t = &w->tensors;
    const int64_t part = slices * stride1;
    REAL *hidden = t->hidden + 2 * at1, *gate = t->gate + 3 * at1;
    NAME(activate_all)(w, b, gate, room->wide, 3 * slices);
    EACH_CHANNEL(s, a, lane) {
        const N9 g = NAME(load9)(t->gx + at9 + AT9);
        REAL *at = room->wide + AT1;
        V dots[3];
        NAME(dot_parts)(g, NAME(load9)(t->mixed + at9 + AT9), dots);
        NAME(store9)(room->nine + AT9,
                     NAME(scale_parts)(g, NAME(load)(at), NAME(load)(at + part), NAME(load)(at + 2 * part)));
        for (int k = 0; k < 3; k++) NAME(store)(at + k * part, dots[k]);
    }
    NAME(times_slope_all)(w, b, gate, room->wide, 3 * slices);
    NAME(linear)(w, b, room, room->wide, 3 * slices, model->gate_out.back, 0, 2 * slices, room->wider);
    NAME(times_slope_all)(w, b, hidden, room->wider, 2 * slices);
    NAME(linear)(w, b, room, room->wider, 2 * slices, model->gate_in.back, 0, slices, room->wide);
    EACH_CHANNEL(s, a, lane) {
        REAL *g = room->wide + AT1;
        NAME(store)(g, NAME(load)(g) * NAME(load)(model->gate_scale + s * SLICE + lane));
        NAME(store)(room->wider + AT1, NAME(squared_norm)(NAME(load9)(t->a + at9 + AT9)));
    }
    NAME(standardise_gradient)(w, b, room->wider, 1, model->gate_epsilon, room->wide);
    NAME(mix)(&room->places, slices, stride9, n, room->nine, model->mix, 1, room->other);
    EACH_CHANNEL(s, a, lane) {
        const V g = NAME(load)(room->wide + AT1);
        const N9 through = NAME(part_norms_gradient)(NAME(load9)(t->a + at9 + AT9), g, g, g);
        NAME(store9)(room->other + AT9, NAME(add9)(NAME(load9)(room->other + AT9), through));
    }
    NAME(edge_gradient)(w, b, room->other);
}

/* From gx, the gradient in X_l: of the embedding, the rest of the backward pass; of a layer's output, the gradients
   in Y (without the part through messages) and, in place of M, in M. gx stays: it reaches X_{l-1} directly. */
static void NAME(descend)(const struct work *w, int64_t b, int64_t l, struct NAME(room) *room)
{
    BLOCK(w, b);
    const struct tensors *t = &w->tensors;
    if (l == 0) {
        NAME(embed_gradient)(w, b, room);
        return;
    }
    const struct layer *layer = model->each_layer + l - 1;
    NAME(factors)(w, b, room);
    EACH_CHANNEL(s, a, lane) {
        const N9 g = NAME(load9)(t->gx + at9 + AT9);
        const N9 squared = NAME(square_gradient)(NAME(load9)(t->d[l - 1] + at9 + AT9), g);
        NAME(store9)(room->nine + AT9, NAME(add9)(g, NAME(scale9)(squared, room->factor[a])));
    }
    NAME(mix)(&room->places, slices, stride9, n, room->nine, layer->out, 1, room->other);
    EACH_CHANNEL(s, a, lane) {
        const N9 y = NAME(load9)(t->y[l - 1] + at9 + AT9), m = NAME(load9)(t->m[l - 1] + at9 + AT9);
        const N9 p = NAME(message_product)(y, m, room->factor[a], model->reflections);
        const V inverse = 1.0f / (NAME(squared_norm)(p) + 1.0f);
        const N9 g = NAME(normalise_gradient)(NAME(scale9)(p, inverse), inverse, NAME(load9)(room->other + AT9));
        N9 gy, gm;
        NAME(message_product_gradient)(y, m, g, room->factor[a], model->reflections, &gy, &gm);
        NAME(store9)(t->gy + at9 + AT9, gy);
        NAME(store9)(t->m[l - 1] + at9 + AT9, gm);
    }
}

/* The gradient in the last X from that in the standardised norms. */
static void NAME(read_gradient)(const struct work *w, int64_t b, struct NAME(room) *room)
{
    BLOCK(w, b);
    REAL *x = w->tensors.x[model->layers] + at9;
    const int64_t part = slices * stride1;
    NAME(read_norms)(w, b, room->wider);
    EACH_CHANNEL(s, a, lane)
        for (int k = 0; k < 3; k++) {
            REAL *g = room->wide + k * part + AT1;
            NAME(store)(g, NAME(load)(g) * NAME(load)(model->read_scale + (k * slices + s) * SLICE + lane));
        }
    NAME(standardise_gradient)(w, b, room->wider, 3, model->read_epsilon, room->wide);
    EACH_CHANNEL(s, a, lane) {
        const REAL *g = room->wide + AT1;
        NAME(store9)(w->tensors.gx + at9 + AT9,
                     NAME(part_norms_gradient)(NAME(load9)(x + AT9), NAME(load)(g), NAME(load)(g + part),
                                               NAME(load)(g + 2 * part)));
    }
}

/* The gradient in X_l from those in Y_l and, directly, in X_l / (|X_l|^2 + 1). */
static void NAME(input_gradient)(const struct work *w, int64_t b, int64_t l, struct NAME(room) *room)
{
    BLOCK(w, b);
    const struct tensors *t = &w->tensors;
    NAME(mix)(&room->places, slices, stride9, n, t->gy + at9, model->each_layer[l].in, 1, room->nine);
    EACH_CHANNEL(s, a, lane) {
        const N9 g = NAME(add9)(NAME(load9)(t->gx + at9 + AT9), NAME(load9)(room->nine + AT9));
        const V inverse = NAME(load)(t->inverse[l] + at1 + AT1);
        NAME(store9)(t->gx + at9 + AT9, NAME(normalise_gradient)(NAME(load9)(t->x[l] + at9 + AT9), inverse, g));
    }
}

/* The gradient through the messages of layer l to X_l, and on from there. */
static void NAME(interact_gradient)(const struct work *w, int64_t b, int64_t l, struct NAME(room) *room)
{
    if (w->model->gathers)
        NAME(message_gradient)(w, b, l);
    else
        NAME(own_message_gradient)(w, b, l);
    NAME(input_gradient)(w, b, l, room);
    NAME(descend)(w, b, l, room);
}
