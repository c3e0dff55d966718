/* The phases of one evaluation. Within a phase blocks are independent; threads take them one by one. Every number is
   the sum of the same terms in the same order, whichever thread computes it. */

/* Room for the scratch of a thread, in numbers. */
static void NAME(phase)(const struct work *w, int64_t phase, int64_t b, struct NAME(room) *room)
{
    const int64_t layers = w->model->layers, stage = w->call->stage;
    if (stage == BACKWARD && phase <= layers)
        ; /* the forward pass of a call before this one */
    else if (phase == 0)
        NAME(embed)(w, b, room);
    else if (phase <= layers)
        NAME(interact)(w, b, phase - 1, room);
    else if (phase <= 2 * layers)
        NAME(interact_gradient)(w, b, 2 * layers - phase, room);
    else
        NAME(forces)(w, b);
    if (phase == layers) {
        NAME(read)(w, b, room);
        if (w->call->forces && stage != FORWARD) {
            NAME(read_gradient)(w, b, room);
            NAME(descend)(w, b, layers, room);
        }
    }
}

/* Divides the scratch of a thread. */
static void NAME(divide_room)(const struct work *w, int64_t thread, struct NAME(room) *room)
{
    room->nine = (REAL *)(w->room + thread * w->room_bytes);
    room->other = room->nine + w->block9;
    room->wide = room->other + w->block9;
    room->wider = room->wide + 4 * w->block1;
    room->charges = room->nine + w->room_reals;
    NAME(find_places)(&room->places);
}

/* A thread's share of the evaluation. */
static void NAME(run)(struct work *w, int64_t thread)
{
    const int64_t layers = w->model->layers, stage = w->call->stage;
    const int64_t last = w->call->forces && stage != FORWARD ? 2 * layers + 1 : layers;
    struct NAME(room) room;
    NAME(divide_room)(w, thread, &room);
    for (int64_t phase = stage == BACKWARD ? layers : 0; phase <= last; phase++) {
        for (int64_t b; (b = atomic_fetch_add(&w->ticket[phase], 1)) < w->blocks;) NAME(phase)(w, phase, b, &room);
        if (w->participants > 1 && phase < last) wait_for_all(w, phase);
    }
}
