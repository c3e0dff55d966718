/* The network of filters for the rows of a block of atoms, MOST_ROWS at a time, and the sums of messages. */

/* Numbers the first rows of all blocks; returns the number of rows. */
static int64_t NAME(first_rows_of_blocks)(const struct work *w, int write)
{
    const struct call *call = w->call;
    int64_t rows = 0;
    for (int64_t i = 0; i < call->atoms; i++) {
        if (write && i % call->block == 0) w->charges.first_row[i / call->block] = rows;
        rows += 1 + w->edges.count[i];
    }
    return rows;
}

/* Numbers the rows of a block, and finds the cutoff function of its edges. */
static void NAME(number_rows)(const struct work *w, int64_t b)
{
    CHARGES(w, b);
    const struct edges *edges = &w->edges;
    int64_t row = c->first_row[b];
    for (int64_t i = first; i < first + n; i++) {
        c->own_row[i] = (int32_t)row++;
        for (int64_t e = call->row_ptr[i]; e < call->row_ptr[i] + edges->count[i]; e++) {
            c->row[e] = (int32_t)row++;
            cosine_cut(1 / (double)edges->inverse[e], model->cutoff, &c->cut[e], &c->bend[e]);
        }
    }
}

/* Some of the rows of a block: atom of the block and edge (-1: the atom itself) of each, and where it is in a slice. */
struct NAME(chunk) {
    int64_t count, row, atom, next; /* row: number of the first; atom, next: where the following chunk starts */
    int32_t atoms[MOST_ROWS], edges[MOST_ROWS], offset[MOST_ROWS];
};

/* The next rows; 0 if there are no more. */
static int NAME(next_rows)(const struct work *w, int64_t b, struct NAME(chunk) *rows)
{
    BLOCK(w, b);
    rows->row += rows->count;
    for (rows->count = 0; rows->count < MOST_ROWS && rows->atom < n; rows->count++) {
        const int64_t i = first + rows->atom;
        rows->atoms[rows->count] = (int32_t)rows->atom;
        rows->edges[rows->count] = rows->next ? (int32_t)(call->row_ptr[i] + rows->next - 1) : -1;
        rows->offset[rows->count] = (int32_t)(rows->count * SLICE);
        if (rows->next++ == w->edges.count[i]) rows->atom++, rows->next = 0;
    }
    return rows->count > 0;
}

static struct NAME(chunk) NAME(first_rows)(const struct work *w, int64_t b)
{
    return (struct NAME(chunk)){.row = w->charges.first_row[b]};
}

/* act(z) and its slope. */
INLINE V NAME(activated)(int64_t kind, V z, V *slope)
{
    if (kind == SILU || kind == SIGMOID) {
        const V s = NAME(sigmoid)(z);
        if (kind == SIGMOID) {
            *slope = s * (1.0f - s);
            return s;
        }
        *slope = s * (1.0f + z * (1.0f - s));
        return z * s;
    }
    REAL value[LANES], change[LANES];
    NAME(store)(value, z);
    for (int k = 0; k < LANES; k++) {
        change[k] = (REAL)NAME(rare)(kind, value[k], 1);
        value[k] = (REAL)NAME(rare)(kind, value[k], 0);
    }
    *slope = NAME(load)(change);
    return NAME(load)(value);
}

#define ROW_STRIDE (MOST_ROWS * SLICE)
/* Channels of the rows of a chunk in `number` slices; row by row, as what is kept of rows lies in memory. */
#define EACH_ROW(s, r, lane, number)           \
    for (int64_t r = 0; r < rows->count; r++)  \
        for (int64_t s = 0; s < (number); s++) \
            for (int64_t lane = 0; lane < SLICE; lane += LANES)
#define IN_ROOM(s, r, lane) ((s) * ROW_STRIDE + (r) * SLICE + (lane))

/* Activates `number` slices of rows in place; slopes [rows][number][16], or 0. */
static void NAME(activate_rows)(int64_t kind, const struct NAME(chunk) *rows, int64_t number, REAL *z, REAL *slopes)
{
    EACH_ROW(s, r, lane, number) {
        V slope;
        REAL *at = z + IN_ROOM(s, r, lane);
        NAME(store)(at, NAME(activated)(kind, NAME(load)(at), &slope));
        if (slopes) NAME(store)(slopes + (r * number + s) * SLICE + lane, slope);
    }
}

/* Filters [3][slices][MOST_ROWS][16] of some rows in layer l, without the cutoff function; returns where they are.
   slopes: of the three activations, [rows][k C]; or 0. */
static REAL *NAME(row_network)(const struct work *w, int64_t b, int64_t l, const struct NAME(chunk) *rows,
                                struct NAME(room) *room, REAL *const slopes[3])
{
    CHARGES(w, b);
    const struct filters *f = charges->filters + l;
    REAL *one = room->rows, *two = one + slices * ROW_STRIDE, *three = two + 2 * slices * ROW_STRIDE;
    EACH_ROW(s, r, lane, slices) {
        const int64_t e = rows->edges[r], mine = at1 + s * stride1 + rows->atoms[r] * SLICE + lane;
        V z = NAME(load)(c->targets[l] + mine);
        if (e < 0)
            z += NAME(load)(c->sources[l] + mine) + NAME(load)(f->own + s * SLICE + lane);
        else {
            const REAL *table = f->table + ((int64_t)w->edges.knot[e] * slices + s) * PART + lane;
            z += NAME(load)(c->sources[l] + (int64_t)w->edges.place[e] * SLICE + s * stride1 + lane);
            z += NAME(filter)(table, NAME(all)(w->edges.t[e]));
        }
        NAME(store)(one + IN_ROOM(s, r, lane), z);
    }
    NAME(activate_rows)(model->activation, rows, slices, one, slopes[0]);
    NAME(product)(one, ROW_STRIDE, rows->offset, rows->count, slices, f->middle.weight, f->middle.bias, 2 * slices, two,
                  ROW_STRIDE);
    NAME(activate_rows)(model->activation, rows, 2 * slices, two, slopes[1]);
    NAME(product)(two, ROW_STRIDE, rows->offset, rows->count, 2 * slices, f->last.weight, f->last.bias, 3 * slices, three,
                  ROW_STRIDE);
    NAME(activate_rows)(model->activation, rows, 3 * slices, three, slopes[2]);
    return three;
}

/* Multiplies filters by the cutoff function, and keeps them in `kept` [rows][3C] unless it is 0. */
static void NAME(cut_rows)(const struct work *w, const struct NAME(chunk) *rows, REAL *filters, REAL *kept)
{
    const int64_t width = 3 * w->model->slices;
    EACH_ROW(s, r, lane, width) {
        const int64_t e = rows->edges[r];
        REAL *at = filters + IN_ROOM(s, r, lane);
        const V value = NAME(load)(at) * (e < 0 ? 1.0f : w->charges.cut[e]);
        NAME(store)(at, value);
        if (kept) NAME(store)(kept + (r * width + s) * SLICE + lane, value);
    }
}

/* Adds the messages of some rows to M. */
static void NAME(add_messages)(const struct work *w, int64_t b, int64_t l, const struct NAME(chunk) *rows,
                               const REAL *filters)
{
    BLOCK(w, b);
    const REAL *y = w->tensors.y[l];
    for (int64_t s = 0; s < slices; s++)
        for (int64_t from = 0, to; from < rows->count; from = to) {
            const int64_t a = rows->atoms[from], here = at9 + s * stride9 + a * NINE;
            for (to = from + 1; to < rows->count && rows->atoms[to] == a; to++) {}
            for (int64_t lane = 0; lane < SLICE; lane += LANES) {
                REAL *m = w->tensors.m[l] + here + lane;
                N9 sum = {{{0}}};
                if (rows->edges[from] >= 0) sum = NAME(load9)(m);
                for (int64_t r = from; r < to; r++) {
                    const int64_t e = rows->edges[r];
                    const REAL *there = y + (e < 0 ? here : s * stride9 + (int64_t)w->edges.place[e] * NINE) + lane;
                    const REAL *f = filters + IN_ROOM(s, r, lane);
                    const V scalar = NAME(load)(f), vector = NAME(load)(f + slices * ROW_STRIDE),
                            symmetric = NAME(load)(f + 2 * slices * ROW_STRIDE);
                    EACH_COMPONENT(k)
                        sum.v[k] += (k == 0 ? scalar : k < 4 ? vector : symmetric) * NAME(load)(there + k * SLICE);
                }
                NAME(store9)(m, sum);
            }
        }
}

/* As message_sum, with filters from the network. */
static void NAME(network_messages)(const struct work *w, int64_t b, int64_t l, struct NAME(room) *room)
{
    CHARGES(w, b);
    const int64_t width = slices * SLICE;
    struct NAME(chunk) rows = NAME(first_rows)(w, b);
    while (NAME(next_rows)(w, b, &rows)) {
        REAL *slopes[3] = {0};
        for (int k = 0; call->forces && call->keep && k < 3; k++)
            slopes[k] = c->slopes[k][l] + rows.row * (k + 1) * width;
        REAL *filters = NAME(row_network)(w, b, l, &rows, room, slopes);
        NAME(cut_rows)(w, &rows, filters, call->forces ? c->filters[l] + rows.row * 3 * width : 0);
        NAME(add_messages)(w, b, l, &rows, filters);
    }
    EACH_CHANNEL(s, a, lane) {
        const N9 y = NAME(load9)(w->tensors.y[l] + at9 + AT9), m = NAME(load9)(w->tensors.m[l] + at9 + AT9);
        const N9 p = NAME(message_product)(y, m, room->factor[a], model->reflections);
        NAME(store9)(room->nine + AT9, NAME(scale9)(p, 1.0f / (NAME(squared_norm)(p) + 1.0f)));
    }
}
