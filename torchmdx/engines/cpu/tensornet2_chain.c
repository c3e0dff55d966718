/* The phases of one evaluation of a TensorNet2; see tensornet_chain.c. Sums over systems are phases of their own, whose
   units are systems instead of blocks. */

enum NAME(kind) {
    NAME(EMBED), NAME(SUMS), NAME(EQUILIBRATE), NAME(INTERACT), NAME(READ), NAME(PULL), NAME(LEVELS), NAME(READ_AGAIN),
    NAME(NETWORK_BACK), NAME(SHARES_BACK), NAME(INPUT_BACK), NAME(FORCES)
};

struct NAME(step) {
    int32_t kind, layer;
};

/* Lists the phases; returns their number. */
static int64_t NAME(plan)(const struct work *w, struct NAME(step) steps[MOST_PHASES])
{
    const int32_t layers = (int32_t)w->model->layers;
    const int64_t stage = w->call->stage;
    int64_t n = 0;
#define STEP(k, l) steps[n++] = (struct NAME(step)){NAME(k), l}
    if (stage != BACKWARD) {
        STEP(EMBED, 0);
        for (int32_t l = 0; l <= layers; l++) {
            if (l == layers && !w->model->charges->last) break;
            STEP(SUMS, l);
            STEP(EQUILIBRATE, l);
            if (l < layers) STEP(INTERACT, l);
        }
        STEP(READ, layers);
    } else {
        STEP(PULL, layers);
        STEP(LEVELS, layers);
        STEP(READ_AGAIN, layers);
    }
    if (stage == FORWARD || !w->call->forces) return n;
    for (int32_t l = layers - 1; l >= 0; l--) {
        STEP(NETWORK_BACK, l);
        STEP(SHARES_BACK, l);
        STEP(LEVELS, l);
        STEP(INPUT_BACK, l);
    }
    STEP(FORCES, 0);
#undef STEP
    return n;
}

/* Charges before layer l, or after the last layer where they are wanted. */
INLINE void NAME(propose_if_wanted)(const struct work *w, int64_t b, int64_t l, struct NAME(room) *room)
{
    if (l < w->model->layers || w->model->charges->last) NAME(propose)(w, b, l, room);
}

static void NAME(phase2)(const struct work *w, struct NAME(step) step, int64_t b, struct NAME(room) *room)
{
    const int64_t l = step.layer;
    switch (step.kind) {
    case NAME(EMBED):
        NAME(embed)(w, b, room);
        NAME(propose_if_wanted)(w, b, 0, room);
        break;
    case NAME(SUMS): NAME(charge_sums)(w, b, l); break;
    case NAME(EQUILIBRATE):
        if (l == 0) NAME(number_rows)(w, b);
        NAME(equilibrate)(w, b, l, room);
        break;
    case NAME(INTERACT):
        NAME(interact)(w, b, l, room);
        NAME(propose_if_wanted)(w, b, l + 1, room);
        break;
    case NAME(READ):
        NAME(read)(w, b, room);
        if (!w->call->forces || w->call->stage == FORWARD) break;
        NAME(read_gradient)(w, b, room);
        NAME(descend)(w, b, l, room);
        break;
    case NAME(PULL): NAME(given_pull)(w, b, l, 0); break;
    case NAME(LEVELS): NAME(charge_levels)(w, b, l); break;
    case NAME(READ_AGAIN):
        NAME(read)(w, b, room);
        NAME(read_gradient)(w, b, room);
        NAME(charge_gradient)(w, b, l, room);
        NAME(descend)(w, b, l, room);
        break;
    case NAME(NETWORK_BACK): NAME(network_gradient)(w, b, l, room); break;
    case NAME(SHARES_BACK): NAME(share_gradient)(w, b, l, room); break;
    case NAME(INPUT_BACK):
        NAME(input_gradient)(w, b, l, room);
        NAME(charge_gradient)(w, b, l, room);
        NAME(descend)(w, b, l, room);
        break;
    default: NAME(forces)(w, b);
    }
}

/* A thread's share of the evaluation, which ends early if there is no memory for the rows. */
static void NAME(run2)(struct work *w, int64_t thread)
{
    struct NAME(step) steps[MOST_PHASES];
    const int64_t count = NAME(plan)(w, steps), vectors = w->call->block * SLICE;
    struct NAME(room) room;
    NAME(divide_room)(w, thread, &room);
    room.rows = room.charges + 4 * w->model->charges->slices * vectors;
    for (int64_t k = 0; k < count; k++) {
        if (k == 1 && w->call->stage != BACKWARD && w->model->layers) { /* all edges are known */
            const int64_t rows = NAME(first_rows_of_blocks)(w, thread == 0);
            if (thread == 0) w->rows_found = rows;
            if (w->call->forces && rows > w->call->rows) return;
        }
        const int systems = steps[k].kind == NAME(SUMS) || steps[k].kind == NAME(LEVELS);
        const int64_t units = systems ? w->call->systems : w->blocks;
        for (int64_t b; (b = atomic_fetch_add(&w->ticket[k], 1)) < units;) NAME(phase2)(w, steps[k], b, &room);
        if (w->participants > 1 && k < count - 1) wait_for_all(w, k);
    }
}
