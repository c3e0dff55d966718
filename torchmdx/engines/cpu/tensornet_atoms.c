/* The maps within each atom, forward, for one block of atoms: embedding and layers. */

/* Scratch of a thread: tensors and vectors of one block. */
struct NAME(room) {
    REAL *nine, *other, *wide, *wider; /* [slices][block][9][16] twice; vectors of up to 4 * slices and head_slices */
    struct NAME(places) places;
    V factor[MOST_BLOCK];
    REAL *charges, *rows; /* of a TensorNet2: vectors of four times its charges; [12][slices][MOST_ROWS][16] */
};

static void NAME(network_messages)(const struct work *w, int64_t b, int64_t l, struct NAME(room) *room);

/* 1 + q/10 of each atom; 1 without the factor. */
static void NAME(factors)(const struct work *w, int64_t b, struct NAME(room) *room)
{
    BLOCK(w, b);
    for (int64_t a = 0; a < n; a++) {
        const double charge =
            model->charge_factor ? number_of(call->charge, call->wide_charge, call->system[first + a]) : 0;
        room->factor[a] = NAME(all)(1.0f + (REAL)0.1 * (REAL)charge);
    }
}

/* Mean and 1 / deviation of `count` slices of the channels of atom a; channels that are not real are left out. */
static void NAME(statistics)(const struct model *model, const REAL *x, int64_t stride, int64_t slices, int64_t parts,
                             double epsilon, REAL *mean, REAL *inverse)
{
    const double number = (double)(parts * model->width);
    V sum = {0}, square = {0};
    for (int64_t s = 0; s < parts * slices; s++)
        for (int64_t lane = 0; lane < SLICE; lane += LANES) sum += NAME(load)(x + s * stride + lane);
    *mean = (REAL)(NAME(sum)(sum) / number);
    for (int64_t s = 0; s < parts * slices; s++)
        for (int64_t lane = 0; lane < SLICE; lane += LANES) {
            const V real = NAME(load)(model->real + s % slices * SLICE + lane);
            const V off = (NAME(load)(x + s * stride + lane) - *mean) * real;
            square += off * off;
        }
    *inverse = (REAL)(1 / sqrt(NAME(sum)(square) / number + epsilon));
}

/* LayerNorm of `parts` norms per channel, in place. */
static void NAME(standardise)(const struct work *w, int64_t b, REAL *x, int64_t parts, const REAL *scale,
                              const REAL *offset, double epsilon)
{
    BLOCK(w, b);
    for (int64_t a = 0; a < n; a++) {
        REAL mean, inverse, *row = x + a * SLICE;
        NAME(statistics)(model, row, stride1, slices, parts, epsilon, &mean, &inverse);
        for (int64_t c = 0; c < parts * slices * SLICE; c += LANES) {
            REAL *at = row + c / SLICE * stride1 + c % SLICE;
            NAME(store)(at, (NAME(load)(at) - mean) * inverse * NAME(load)(scale + c) + NAME(load)(offset + c));
        }
    }
}

/* The gradient g in standardised norms, already times the scale, becomes that in the norms x. */
static void NAME(standardise_gradient)(const struct work *w, int64_t b, const REAL *x, int64_t parts, double epsilon,
                                       REAL *g)
{
    BLOCK(w, b);
    const double number = (double)(parts * model->width);
    for (int64_t a = 0; a < n; a++) {
        REAL mean, inverse, *row = g + a * SLICE;
        const REAL *norm = x + a * SLICE;
        NAME(statistics)(model, norm, stride1, slices, parts, epsilon, &mean, &inverse);
        V level = {0}, along = {0};
        for (int64_t s = 0; s < parts * slices; s++)
            for (int64_t lane = 0; lane < SLICE; lane += LANES) {
                const V gk = NAME(load)(row + s * stride1 + lane);
                level += gk;
                along += gk * ((NAME(load)(norm + s * stride1 + lane) - mean) * inverse);
            }
        const REAL common = (REAL)(NAME(sum)(level) / number), shared = (REAL)(NAME(sum)(along) / number);
        for (int64_t s = 0; s < parts * slices; s++)
            for (int64_t lane = 0; lane < SLICE; lane += LANES) {
                const V z = (NAME(load)(norm + s * stride1 + lane) - mean) * inverse;
                V *at = (V *)(row + s * stride1 + lane);
                *at = (*at - common - z * shared) * inverse;
            }
    }
}

/* What the next stage reads of X_l: X / (|X|^2 + 1) and 1 / (|X|^2 + 1), or, after the last layer, X. */
INLINE void NAME(store_output)(const struct work *w, int64_t l, int64_t at9, int64_t at1, N9 x)
{
    if (l < w->model->layers) {
        const V inverse = 1.0f / (NAME(squared_norm)(x) + 1.0f);
        NAME(store)(w->tensors.inverse[l] + at1, inverse);
        x = NAME(scale9)(x, inverse);
    }
    NAME(store9)(w->tensors.x[l] + at9, x);
}

/* Y_l = W_1 X_l, if there is a layer l. */
static void NAME(send)(const struct work *w, int64_t b, int64_t l, const struct NAME(room) *room)
{
    BLOCK(w, b);
    if (l < model->layers)
        NAME(mix)(&room->places, slices, stride9, n, w->tensors.x[l] + at9, model->each_layer[l].in, 0,
                  w->tensors.y[l] + at9);
}

/* [rows][inner] W + bias for vectors per atom of a block. */
INLINE void NAME(linear)(const struct work *w, int64_t b, const struct NAME(room) *room, const REAL *in,
                         int64_t inner, const REAL *matrix, const REAL *bias, int64_t outer, REAL *out)
{
    BLOCK(w, b);
    NAME(product)(in, stride1, room->places.flat, n, inner, matrix, bias, outer, out, stride1);
}

/* act(z) of the first n atoms of vectors of `width` slices. */
INLINE void NAME(activate_all)(const struct work *w, int64_t b, const REAL *z, REAL *out, int64_t width)
{
    BLOCK(w, b);
    for (int64_t s = 0; s < width; s++)
        NAME(activate)(model->activation, z + s * stride1, out + s * stride1, n * SLICE);
}

INLINE void NAME(times_slope_all)(const struct work *w, int64_t b, const REAL *z, REAL *g, int64_t width)
{
    BLOCK(w, b);
    for (int64_t s = 0; s < width; s++)
        NAME(times_slope)(model->activation, z + s * stride1, g + s * stride1, n * SLICE);
}

/* Geometry, A, and X_0 = W A act(gate(|A|^2)). */
static void NAME(embed)(const struct work *w, int64_t b, struct NAME(room) *room)
{
    BLOCK(w, b);
    const struct tensors *t = &w->tensors;
    for (int64_t i = first; i < first + n; i++) NAME(row_geometry)(w, i);
    NAME(embedding_sum)(w, b);
    EACH_CHANNEL(s, a, lane)
        NAME(store)(room->wide + AT1, NAME(squared_norm)(NAME(load9)(t->a + at9 + AT9)));
    NAME(standardise)(w, b, room->wide, 1, model->gate_scale, model->gate_offset, model->gate_epsilon);
    REAL *hidden = t->hidden + 2 * at1, *gate = t->gate + 3 * at1;
    NAME(linear)(w, b, room, room->wide, slices, model->gate_in.weight, model->gate_in.bias, 2 * slices, hidden);
    NAME(activate_all)(w, b, hidden, room->wide, 2 * slices);
    NAME(linear)(w, b, room, room->wide, 2 * slices, model->gate_out.weight, model->gate_out.bias, 3 * slices, gate);
    NAME(activate_all)(w, b, gate, room->wide, 3 * slices);
    NAME(mix)(&room->places, slices, stride9, n, t->a + at9, model->mix, 0, t->mixed + at9);
    EACH_CHANNEL(s, a, lane) {
        const REAL *g = room->wide + AT1;
        const int64_t part = slices * stride1;
        const N9 x = NAME(scale_parts)(NAME(load9)(t->mixed + at9 + AT9), NAME(load)(g), NAME(load)(g + part),
                                       NAME(load)(g + 2 * part));
        NAME(store_output)(w, 0, at9 + AT9, at1 + AT1, x);
    }
    NAME(send)(w, b, 0, room);
}

/* X_{l+1} = X_l + D + (1 + q/10) D D, with D = W_2 P / (|P|^2 + 1). */
static void NAME(interact)(const struct work *w, int64_t b, int64_t l, struct NAME(room) *room)
{
    BLOCK(w, b);
    const struct tensors *t = &w->tensors;
    NAME(factors)(w, b, room);
    if (model->charges)
        NAME(network_messages)(w, b, l, room);
    else if (model->gathers)
        NAME(message_sum)(w, b, l, room->factor, room->nine);
    else
        NAME(own_message_sum)(w, b, l, room->factor, room->nine);
    NAME(mix)(&room->places, slices, stride9, n, room->nine, model->each_layer[l].out, 0, t->d[l] + at9);
    EACH_CHANNEL(s, a, lane) {
        const N9 d = NAME(load9)(t->d[l] + at9 + AT9);
        const N9 x = NAME(add9)(NAME(add9)(NAME(load9)(t->x[l] + at9 + AT9), d),
                                NAME(scale9)(NAME(square)(d), room->factor[a]));
        NAME(store_output)(w, l + 1, at9 + AT9, at1 + AT1, x);
    }
    NAME(send)(w, b, l + 1, room);
}
