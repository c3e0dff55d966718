/* The backward pass through messages and the network of filters, for one block of atoms. */

/* The other direction of each edge of a block. */
static void NAME(find_back)(const struct work *w, int64_t b)
{
    BLOCK(w, b);
    for (int64_t i = first; i < first + n; i++)
        for (int64_t e = call->row_ptr[i]; e < call->row_ptr[i] + w->edges.count[i]; e++)
            w->charges.back[e] = (int32_t)NAME(other_direction)(w, i, e);
}

/* From the gradient g in M: that in the filters before the cutoff function, times the slopes [rows][3C] of the last
   activation, in `out`; those in Y, whose messages went through the other directions of the rows; and, in along, the
   sum of filters times their gradients of each row. */
static void NAME(filter_gradient)(const struct work *w, int64_t b, int64_t l, const struct NAME(chunk) *rows,
                                  const REAL *slopes, REAL *out, V *along)
{
    CHARGES(w, b);
    const struct edges *edges = &w->edges;
    const int64_t width = slices * SLICE;
    const REAL *kept = c->filters[l], *y = w->tensors.y[l], *g = w->tensors.m[l];
    for (int64_t r = 0; r < rows->count; r++) {
        const int64_t e = rows->edges[r], back = e < 0 ? 0 : c->back[e], mine = at9 + rows->atoms[r] * NINE;
        const int64_t theirs = e < 0 ? mine : (int64_t)edges->place[e] * NINE, row = rows->row + r;
        const REAL *own = kept + row * 3 * width, *other = e < 0 || back < 0 ? own : kept + c->row[back] * 3 * width;
        const V exists = NAME(all)(back < 0 ? 0.0f : 1.0f), cut = NAME(all)(e < 0 ? 1.0f : c->cut[e]);
        along[r] = (V){0};
        for (int64_t s = 0; s < slices; s++)
            for (int64_t lane = 0; lane < SLICE; lane += LANES) {
                const int64_t here = s * stride9 + mine + lane, there = s * stride9 + theirs + lane;
                V dot[3];
                NAME(dot_parts)(NAME(load9)(g + here), NAME(load9)(y + there), dot);
                N9 sum = NAME(load9)(w->tensors.gy + here);
#pragma GCC unroll 3
                for (int part = 0; part < 3; part++) {
                    const int64_t at = part * width + s * SLICE + lane;
                    const V f = NAME(load)(other + at) * exists;
                    along[r] += dot[part] * NAME(load)(own + at);
                    NAME(store)(out + IN_ROOM(part * slices + s, r, lane),
                                dot[part] * cut * NAME(load)(slopes + r * 3 * width + at));
#pragma GCC unroll 5
                    for (int k = part * part; k < (part + 1) * (part + 1); k++)
                        sum.v[k] += f * NAME(load)(g + there + k * SLICE);
                }
                NAME(store9)(w->tensors.gy + here, sum);
            }
    }
}

/* Multiplies `number` slices of rows by slopes [rows][number][16]. */
static void NAME(times_slopes)(const struct NAME(chunk) *rows, int64_t number, REAL *g, const REAL *slopes)
{
    EACH_ROW(s, r, lane, number) {
        REAL *at = g + IN_ROOM(s, r, lane);
        NAME(store)(at, NAME(load)(at) * NAME(load)(slopes + (r * number + s) * SLICE + lane));
    }
}

/* From the gradients in z1 of some rows: keeps them, and adds those in t to the slopes of the edges. */
static void NAME(first_gradient)(const struct work *w, int64_t b, int64_t l, const struct NAME(chunk) *rows,
                                 const REAL *g, const V *along)
{
    CHARGES(w, b);
    const struct edges *edges = &w->edges;
    const REAL *table = charges->filters[l].table;
    for (int64_t r = 0; r < rows->count; r++) {
        const int64_t e = rows->edges[r];
        REAL *kept = c->pull[l] + (rows->row + r) * slices * SLICE;
        V total = {0};
        for (int64_t s = 0; s < slices; s++)
            for (int64_t lane = 0; lane < SLICE; lane += LANES) {
                const V value = NAME(load)(g + IN_ROOM(s, r, lane));
                NAME(store)(kept + s * SLICE + lane, value);
                if (e < 0) continue;
                V slope, f = NAME(filter_and_slope)(table + ((int64_t)edges->knot[e] * slices + s) * PART + lane,
                                                    NAME(all)(edges->t[e]), &slope);
                (void)f;
                total += slope * value;
            }
        if (e >= 0)
            edges->slope[e] += NAME(sum)(total) + (double)NAME(sum)(along[r]) * c->bend[e] / edges->stretch[e];
    }
}

/* From the gradient in M: that in Y, in z1 of the block's rows, and in the distances of its edges. */
static void NAME(network_gradient)(const struct work *w, int64_t b, int64_t l, struct NAME(room) *room)
{
    CHARGES(w, b);
    const struct filters *f = charges->filters + l;
    const int64_t width = slices * SLICE;
    REAL *one = room->rows, *two = one + slices * ROW_STRIDE, *three = two + 2 * slices * ROW_STRIDE;
    REAL *spare = three + 3 * slices * ROW_STRIDE;
    V along[MOST_ROWS];
    struct NAME(chunk) rows = NAME(first_rows)(w, b);
    if (l == model->layers - 1) NAME(find_back)(w, b);
    while (NAME(next_rows)(w, b, &rows)) {
        REAL *slopes[3] = {spare, spare + slices * ROW_STRIDE, spare + 3 * slices * ROW_STRIDE};
        if (call->keep)
            for (int k = 0; k < 3; k++) slopes[k] = c->slopes[k][l] + rows.row * (k + 1) * width;
        else
            NAME(row_network)(w, b, l, &rows, room, slopes);
        NAME(filter_gradient)(w, b, l, &rows, slopes[2], three, along);
        NAME(product)(three, ROW_STRIDE, rows.offset, rows.count, 3 * slices, f->last.back, 0, 2 * slices, two, ROW_STRIDE);
        NAME(times_slopes)(&rows, 2 * slices, two, slopes[1]);
        NAME(product)(two, ROW_STRIDE, rows.offset, rows.count, 2 * slices, f->middle.back, 0, slices, one, ROW_STRIDE);
        NAME(times_slopes)(&rows, slices, one, slopes[0]);
        NAME(first_gradient)(w, b, l, &rows, one, along);
    }
}

/* The gradient in the charges before layer l: through the shares of each atom as target and as source. */
static void NAME(share_gradient)(const struct work *w, int64_t b, int64_t l, struct NAME(room) *room)
{
    CHARGES(w, b);
    const int64_t width = slices * SLICE;
    const struct map *shares = charges->filters[l].shares;
    REAL *targets = room->wide, *sources = targets + slices * stride1, *other = room->charges + groups * stride1;
    EACH_CHANNEL(s, a, lane) {
        const int64_t i = first + a, from = call->row_ptr[i];
        const REAL *pull = c->pull[l] + s * SLICE + lane;
        V target = NAME(load)(pull + c->own_row[i] * width), source = target;
        for (int64_t e = from; e < from + w->edges.count[i]; e++) {
            target += NAME(load)(pull + c->row[e] * width);
            if (c->back[e] >= 0) source += NAME(load)(pull + c->row[c->back[e]] * width);
        }
        NAME(store)(targets + AT1, target);
        NAME(store)(sources + AT1, source);
    }
    NAME(linear)(w, b, room, targets, slices, shares[0].back, 0, groups, room->charges);
    NAME(linear)(w, b, room, sources, slices, shares[1].back, 0, groups, other);
    for (int64_t k = 0; k < groups; k++)
        for (int64_t j = 0; j < n * SLICE; j++) room->charges[k * stride1 + j] += other[k * stride1 + j];
    NAME(given_pull)(w, b, l, room->charges);
}
