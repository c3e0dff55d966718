/* Divides the scratch memory that a TensorNet2 needs in addition; returns the end of what precedes the threads' rooms,
   which it enlarges. */
static char *divide_charges(struct work *w, char *next)
{
    const struct model *model = w->model;
    const struct call *call = w->call;
    const struct charges *charges = model->charges;
    struct charge_tensors *c = &w->charges;
    const int64_t four = sizeof(int32_t), real = sizeof(REAL), width = model->slices * SLICE, rows = call->rows;
    const int64_t one = w->blocks * w->block1 * real, each = w->blocks * charges->slices * call->block * SLICE * real;
    const int64_t sums = call->systems * charges->slices * SLICE * sizeof(double);
    c->first_row = (int64_t *)take(&next, w->blocks * 8);
    c->own_row = (int32_t *)take(&next, call->atoms * four);
    c->row = (int32_t *)take(&next, call->capacity * four);
    c->back = (int32_t *)take(&next, call->capacity * four);
    c->cut = (REAL *)take(&next, call->capacity * real);
    c->bend = (REAL *)take(&next, call->capacity * real);
    c->level = (double *)take(&next, sums);
    c->gradient = (REAL *)take(&next, each);
    for (int64_t l = 0; l <= model->layers; l++) {
        if (l == model->layers && !charges->last) break;
        c->first[l] = (REAL *)take(&next, one), c->second[l] = (REAL *)take(&next, one);
        c->proposed[l] = (REAL *)take(&next, 2 * each), c->charges[l] = (REAL *)take(&next, each);
        c->ratio[l] = (double *)take(&next, sums), c->whole[l] = (double *)take(&next, sums);
    }
    REAL *pull = call->keep ? 0 : (REAL *)take(&next, rows * width * real);
    for (int64_t l = 0; l < model->layers; l++) {
        c->targets[l] = (REAL *)take(&next, one), c->sources[l] = (REAL *)take(&next, one);
        c->filters[l] = (REAL *)take(&next, 3 * rows * width * real);
        for (int k = 0; call->keep && k < 3; k++)
            c->slopes[k][l] = (REAL *)take(&next, (k + 1) * rows * width * real);
        c->pull[l] = call->keep ? c->slopes[0][l] : pull;
    }
    w->room_bytes += (4 * charges->slices * call->block + 12 * model->slices * MOST_ROWS) * SLICE * real;
    w->room_bytes = (w->room_bytes + 63) / 64 * 64;
    return next;
}
