/* Readout and head: from the last X to the energies of atoms and back to the gradient in the norms, for one block.

   A head is one network; or two, and its output is that of the first times the sigmoid of that of the second. */

/* The norms of the three parts of the last X, [3][slices][block][16]. */
static void NAME(read_norms)(const struct work *w, int64_t b, REAL *norms)
{
    BLOCK(w, b);
    EACH_CHANNEL(s, a, lane) {
        V part[3];
        NAME(part_norms)(NAME(load9)(w->tensors.x[model->layers] + at9 + AT9), part);
        for (int k = 0; k < 3; k++) NAME(store)(norms + k * slices * stride1 + AT1, part[k]);
    }
}

/* Outputs [n] of a network of the head from features u, and z, its hidden layers before the activation. */
static void NAME(head_outputs)(const struct work *w, int64_t b, const struct NAME(room) *room, int64_t network,
                               const REAL *u, REAL *z, REAL *h, double *outputs)
{
    BLOCK(w, b);
    const int64_t hidden = model->head_layers, width = model->head_slices;
    const struct map *maps = model->heads + network * hidden;
    const REAL *last = model->last + network * width * SLICE;
    for (int64_t k = 0; k < hidden; k++) {
        REAL *to = z + k * width * stride1;
        NAME(linear)(w, b, room, k ? h : u, k ? width : slices, maps[k].weight, maps[k].bias, width, to);
        NAME(activate_all)(w, b, to, h, width);
    }
    for (int64_t a = 0; a < n; a++) {
        outputs[a] = model->last_bias[network];
        for (int64_t c = 0; c < width * SLICE; c++)
            outputs[a] += (double)h[c / SLICE * stride1 + a * SLICE + c % SLICE] * last[c];
    }
}

/* The inputs of the last layer, and 1 for its bias, of the network whose output is an energy. h: its last hidden layer. */
static void NAME(give_last_inputs)(const struct work *w, int64_t b, const REAL *h)
{
    BLOCK(w, b);
    const int64_t size = call->last_size;
    for (int64_t a = 0; a < n; a++) {
        REAL *to = call->last_inputs + (first + a) * size;
        for (int64_t c = 0; c < size - 1; c++) to[c] = h[c / SLICE * stride1 + a * SLICE + c % SLICE];
        to[size - 1] = 1;
    }
}

/* The gradient in the features from those in a network's outputs, in g or other; returns which. */
static REAL *NAME(head_gradient)(const struct work *w, int64_t b, const struct NAME(room) *room, int64_t network,
                                  const REAL *z, const double *outputs, REAL *g, REAL *other)
{
    BLOCK(w, b);
    const int64_t hidden = model->head_layers, width = model->head_slices;
    const struct map *maps = model->heads + network * hidden;
    const REAL *last = model->last + network * width * SLICE;
    for (int64_t s = 0; s < width; s++)
        for (int64_t k = 0; k < n * SLICE; k++)
            g[s * stride1 + k] = last[s * SLICE + k % SLICE] * (REAL)outputs[k / SLICE];
    for (int64_t k = hidden - 1; k >= 0; k--) {
        NAME(times_slope_all)(w, b, z + k * width * stride1, g, width);
        NAME(linear)(w, b, room, g, width, maps[k].back, 0, k ? width : slices, other);
        REAL *swap = g;
        g = other, other = swap;
    }
    return g;
}

/* Energies of the atoms, without the potential's shift, from the outputs of the networks, which become the gradients
   in them. */
static void NAME(atom_energies)(const struct work *w, int64_t b, double outputs[MOST_NETWORKS][MOST_BLOCK])
{
    BLOCK(w, b);
    const int gated = model->head_networks == 2;
    for (int64_t a = 0; a < n; a++) {
        const double gate = gated ? 1 / (1 + exp(-outputs[1][a])) : 1, output = outputs[0][a];
        call->energies[first + a] = output * gate * model->scale + model->references[call->numbers[first + a]];
        outputs[0][a] = model->scale * gate;
        if (gated) outputs[1][a] = model->scale * output * gate * (1 - gate);
        const int mine = owned(call, first + a);
        if (!mine) call->energies[first + a] = outputs[0][a] = outputs[1][a] = 0;
        if (call->last_inputs && (gated || !mine))
            for (int64_t c = 0; c < call->last_size; c++)
                call->last_inputs[(first + a) * call->last_size + c] *= mine ? (REAL)gate : 0;
    }
}

/* Without a head: the features of the atoms are results, in call->channels, and there are no energies. */
static void NAME(give_features)(const struct work *w, int64_t b, const REAL *u)
{
    BLOCK(w, b);
    for (int64_t a = 0; a < n; a++) {
        REAL *to = call->channels + (first + a) * model->width;
        for (int64_t c = 0; c < model->width; c++) to[c] = u[c / SLICE * stride1 + a * SLICE + c % SLICE];
        call->energies[first + a] = 0;
    }
}

/* Their gradient, from call->pull. */
static void NAME(take_pull)(const struct work *w, int64_t b, REAL *u)
{
    BLOCK(w, b);
    memset(u, 0, sizeof(REAL) * (size_t)(slices * stride1));
    for (int64_t a = 0; a < n; a++) {
        const REAL *from = call->pull + (first + a) * model->width;
        for (int64_t c = 0; c < model->width; c++) u[c / SLICE * stride1 + a * SLICE + c % SLICE] = from[c];
    }
}

/* Energies of the atoms, and, in room->wide, the gradient in the standardised norms. */
static void NAME(read)(const struct work *w, int64_t b, struct NAME(room) *room)
{
    BLOCK(w, b);
    const int64_t part = slices * stride1, hidden = model->head_layers * model->head_slices * stride1;
    REAL *features = room->wider, *u = features + part, *h = u + part, *other = h + part, *z = other + part;
    double outputs[MOST_NETWORKS][MOST_BLOCK];
    NAME(read_norms)(w, b, room->wide);
    NAME(standardise)(w, b, room->wide, 3, model->read_scale, model->read_offset, model->read_epsilon);
    NAME(linear)(w, b, room, room->wide, 3 * slices, model->read.weight, model->read.bias, slices, features);
    if (model->readout_activation)
        NAME(activate_all)(w, b, features, u, slices);
    else
        memcpy(u, features, sizeof(REAL) * (size_t)part);
    for (int64_t k = 0; k < model->head_networks; k++) {
        NAME(head_outputs)(w, b, room, k, u, z + k * hidden, h, outputs[k]);
        if (!k && call->last_inputs) NAME(give_last_inputs)(w, b, h);
    }
    if (model->head_networks)
        NAME(atom_energies)(w, b, outputs);
    else if (call->stage == BACKWARD)
        NAME(take_pull)(w, b, u);
    else
        NAME(give_features)(w, b, u);
    if (!call->forces || (call->stage == FORWARD && !model->head_networks)) return;
    for (int64_t k = 0; k < model->head_networks; k++) {
        const REAL *g = NAME(head_gradient)(w, b, room, k, z + k * hidden, outputs[k], h, other);
        EACH_CHANNEL(s, a, lane) {
            V sum = NAME(load)(g + AT1);
            if (k) sum += NAME(load)(u + AT1);
            NAME(store)(u + AT1, sum);
        }
    }
    if (model->readout_activation) NAME(times_slope_all)(w, b, features, u, slices);
    NAME(linear)(w, b, room, u, slices, model->read.back, 0, 3 * slices, room->wide);
}
