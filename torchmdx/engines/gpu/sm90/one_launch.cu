// Energy and forces of few atoms in one launch: clusters of SHARES blocks, each cluster with some of the atoms, each
// block with WIDE of their channels.
//
// Products: a block computes its own channels from all channels of its atoms, which the cluster exchanges by stores
// into distributed shared memory. Weights are in registers, loaded before the exchange that the product waits for.
// Products of nine components are made by tensor cores, in three products of TF32 numbers: float32, but for its last bits.
// Messages stay within a slice of channels, so only blocks of the same rank wait for each other, through global memory.
//
// Steps of dynamics are a loop around the evaluation, within the launch.

#include "one_launch_motion.cuh"
#include "one_launch_norms.cuh"
#include "one_launch_uncertainty.cuh"

// X as the next layer reads it, to be pushed, and 1/(|X|^2+1).
DEV void put_input(const Block &b, int a, int which, int l, N9 x)
{
    const float inverse = reciprocal(squared_norm(x) + 1.0f);
    b.inverse(a, l)[b.col] = inverse;
    x = scale9(x, inverse);
    store_own(b.keep(a, which) + b.col, x);
    store_own(b.stage + a * NINE + b.col, x);
}

// Gradient in D from that in X' = X + D + (1 + q/10) D D, to be pushed.
DEV void put_update_gradient(const Block &b, int a, int which, const N9 &g)
{
    const N9 d = load_own(b.keep(a, which) + b.col);
    store_own(b.stage + a * NINE + b.col, add9(g, scale9(square_gradient(d, g), b.factor(a))));
}

// An exchange of what is in `stage`. What comes next is put elsewhere: copies may still read this.
#define NEXT_STAGE b.stage = b.stages + (turn + 1) % 2 * per_cluster(p) * NINE;
#define EXCHANGE(to, rows, width, stride)                                                                              \
    before_push();                                                                                                     \
    __syncthreads();                                                                                                   \
    if (b.tid == 0) expect(turn, (rows) * atoms * SHARES * width * 4);                                                 \
    push<width, rows>(b, b.stage, to, stride, turn);                                                                   \
    NEXT_STAGE
#define EXCHANGE_NINES(to)                                                                                             \
    before_push();                                                                                                     \
    __syncthreads();                                                                                                   \
    if (b.tid == 0) expect(turn, atoms * SHARES * NINE * 4);                                                           \
    push_nines(b, b.stage, to, turn);                                                                                  \
    NEXT_STAGE
// The same, and `rows` times WIDE numbers of each atom. They come from memory that no block pushes to then: one that has
// everything already continues before this block has read it all.
#define EXCHANGE_NINES_AND(to, from, to_rows, rows)                                                                    \
    before_push();                                                                                                     \
    __syncthreads();                                                                                                   \
    if (b.tid == 0) expect(turn, (9 + rows) * atoms * SHARES * WIDE * 4);                                              \
    push<WIDE, rows>(b, from, to_rows, C, turn);                                                                       \
    push_nines(b, b.stage, to, turn);                                                                                  \
    NEXT_STAGE
// Of a hidden layer, `put_hidden`, to `to` and after the activation to v1.
#define EXCHANGE_HIDDEN(to, width, stride)                                                                             \
    before_push();                                                                                                     \
    __syncthreads();                                                                                                   \
    if (b.tid == 0) expect(turn, 2 * atoms * SHARES * width * 4);                                                      \
    push<width, 1>(b, b.stage, to, stride, turn);                                                                      \
    push<width, 1>(b, b.stage + per_cluster(p) * width, b.v1, stride, turn);                                           \
    NEXT_STAGE

template <int WIDTH> DEV void put_hidden(const Block &b, int o, float z, float activated)
{
    b.stage[o] = z, b.stage[per_cluster(b.p) * WIDTH + o] = activated;
}

DEV void send(const Block &b, int layer, const float (&w)[12], const float *x)
{
    const Params &p = b.p;
    product9(b, w, x, b.result);
    EACH_OWN(a)
    {
        const N9 y = load_own(b.result + a * NINE + b.col);
        tell_nine(b, p.y + nine_of(b, layer, b.first + a), y);
        store_own(b.keep(a, KEEP_Y0 + A_LAYER * layer) + b.col, y);
    }
}

DEV void receive(const Block &b, int layer, const Near &near)
{
    messages(b, layer, near);
    EACH_OWN(a)
    {
        const float *own = b.own(layer + 1);
        const N9 y = load_own(b.keep(a, KEEP_Y0 + A_LAYER * layer) + b.col);
        const N9 m = add9(load_own(b.result + a * NINE + b.col), scale_parts(y, own[0], own[WIDE], own[2 * WIDE]));
        store_own(b.keep(a, KEEP_M0 + A_LAYER * layer) + b.col, m);
        N9 product = REFLECTIONS ? message_product(y, m, b.factor(a)) : turned_product(y, m);
        const float inverse = reciprocal(squared_norm(product) + 1.0f);
        b.inverse(a, LAYERS + layer)[b.col] = inverse, product = scale9(product, inverse);
        store_own(b.keep(a, KEEP_P0 + A_LAYER * layer) + b.col, product);
        store_own(b.stage + a * NINE + b.col, product);
    }
}

// From the gradient in P / (|P|^2 + 1), the result of a product, that in M, for neighbours, by the first half of the
// warps, and a part of that in Y by the other half.
DEV void product_gradient(const Block &b, int layer)
{
    const Params &p = b.p;
    const bool first = b.warp < WARPS / 2;
#pragma unroll 1
    for (int o = b.tid % (THREADS / 2); o < b.atoms * WIDE; o += THREADS / 2) {
        const int a = o / WIDE, which = A_LAYER * layer;
        const N9 product = load_own(b.keep(a, KEEP_P0 + which) + b.col);
        const N9 g = normalise_gradient(product, b.inverse(a, LAYERS + layer)[b.col], load_own(b.result + a * NINE + b.col));
        const N9 other = load_own(b.keep(a, (first ? KEEP_Y0 : KEEP_M0) + which) + b.col);
        const N9 gradient = REFLECTIONS ? message_product_gradient(other, g, b.factor(a))
                                        : turned_product_gradient(other, g, first);
        if (first) tell_nine(b, p.gm + nine_of(b, layer, b.first + a), gradient);
        store_own((first ? b.keep(a, KEEP_D0 + which) : b.stage + a * NINE) + b.col, gradient); // D has been used
    }
}

// The whole gradient in Y, to be pushed.
DEV void receive_gradient(const Block &b, int layer, const Near &near)
{
    messages_gradient(b, layer, near);
    EACH_OWN(a)
    {
        const float *own = b.own(layer + 1);
        const N9 gm = load_own(b.keep(a, KEEP_D0 + A_LAYER * layer) + b.col),
                 gy = load_own(b.stage + a * NINE + b.col);
        store_own(
            b.stage + a * NINE + b.col,
            add9(add9(load_own(b.result + a * NINE + b.col), scale_parts(gm, own[0], own[WIDE], own[2 * WIDE])), gy));
    }
}

DEV N9 input_gradient(const Block &b, int a, int which, int l)
{
    const N9 g = add9(load_own(b.result + a * NINE + b.col), load_own(b.keep(a, KEEP_LAST) + b.col));
    return normalise_gradient(load_own(b.keep(a, which) + b.col), b.inverse(a, l)[b.col], g);
}

// X of the last layer, and its norms, to be pushed.
DEV void put_last(const Block &b, int a, const N9 &x)
{
    float norms[3];
    store_own(b.keep(a, KEEP_LAST) + b.col, x);
    part_norms(x, norms);
#pragma unroll
    for (int k = 0; k < 3; k++) b.stage[(a * 3 + k) * WIDE + b.col] = norms[k];
}

// From the gradient in X of the embedding, that in what is gated, to be pushed, and in the gate, in `features`.
DEV void put_gate_gradient(const Block &b, int a, const N9 &g)
{
    float z[3], dots[3];
    dot_parts(g, load_own(b.keep(a, KEEP_MIXED) + b.col), dots);
#pragma unroll
    for (int k = 0; k < 3; k++) {
        z[k] = b.gate(a)[k * WIDE + b.col];
        b.features[(a * 3 + k) * WIDE + b.col] = dots[k] * slope_at(z[k]);
    }
    store_own(b.stage + a * NINE + b.col, scale_parts(g, activate(z[0]), activate(z[1]), activate(z[2])));
}

// Energy of an atom, where this block tells it.
DEV void tell_energy(const Block &b, int a, double energy)
{
    if (b.rank == a % SHARES && b.lane == 0)
        tell(energies_told(b) + b.first + a,
             told(b, __int_as_float(__double2loint(energy)), __int_as_float(__double2hiint(energy)), 0));
}

// The hidden layers of a plain head beyond the first: from `result`, before bias and activation, to `result` of the last.
DEV void more_head(const Block &b)
{
    const int size = per_cluster(b.p) * HEAD;
#pragma unroll 1
    for (int l = 0; l < HIDDEN - 1; l++) {
        float w[8];
        fetch(w, b.weights, AT_MORE + 8 * l);
#pragma unroll 1
        for (int o = b.tid; o < b.atoms * HEAD; o += THREADS) {
            const float z = b.result[o] + b.vectors[AT_HEAD_BIAS + (1 + l) * HEAD + o % HEAD];
            b.head[l * size + o] = z, b.v1[o] = activate(z);
        }
        __syncthreads();
        product1<HEAD, 4>(b, w, b.v1, HEAD, [&](int o, float sum) { b.result[o] = sum; });
        __syncthreads();
    }
}
// The gradient in the first of them from that in the last, both in `stage`.
DEV void more_head_back(const Block &b)
{
    const int size = per_cluster(b.p) * HEAD;
#pragma unroll 1
    for (int l = HIDDEN - 2; l >= 0; l--) {
        float w[8];
        fetch(w, b.weights, AT_MORE + MORE_WEIGHTS + 8 * l);
        product1<HEAD, 4>(b, w, b.stage, HEAD, [&](int o, float sum) { b.result[o] = sum; });
        __syncthreads();
#pragma unroll 1
        for (int o = b.tid; o < b.atoms * HEAD; o += THREADS)
            b.stage[o] = b.result[o] * slope_at(b.head[l * size + o]);
        __syncthreads();
    }
}

// Energies from the features, which are in v1, and the gradient in them before their activation, to `xa`: by a plain
// head, of which every block computes all.
DEV void plain_head(const Block &b, float (&head)[16], float (&head_back)[16])
{
    const Params &p = b.p;
    float *const xa = b.xa;
    const double scale = p.constants[0], bias = p.constants[1];
    product1<C, 4>(b, head, b.v1, C, [&](int o, float sum) { b.result[o] = sum; });
    __syncthreads();
    if (HIDDEN > 1) more_head(b);
#pragma unroll 1
    for (int a = b.warp; a < b.atoms; a += WARPS) {
        double output = head_output(b, a, (float)scale);
        if (b.rank == a % SHARES) tell_energy(b, a, (over_warp(output) + bias) * scale + b.reference(a));
        if (UNCERTAIN) put_plain_inputs(b, a);
    }
    __syncthreads();
    if (!p.forces) return;
    if (HIDDEN > 1) more_head_back(b);
    product1<HEAD, 8>(b, head_back, b.stage, HEAD, [&](int o, float sum) { xa[o] = sum * feature_slope(b.features[o]); });
    __syncthreads();
}

// The same of a gated head: two networks, of whose layers a block computes its own channels. Exchanges take turns in the
// rooms xa and xb, so that no block pushes to what another reads.
DEV void gated_head(Block &b, int &turn)
{
    const Params &p = b.p;
    const int atoms = b.atoms, size = per_cluster(p) * 2 * WIDE;
    const double scale = p.constants[0];
    float w[8];
    float *room = b.v1;
    fetch(w, b.weights, AT_HEAD);
#pragma unroll 1
    for (int l = 0; l < HIDDEN; l++) {
        const float *bias = b.vectors + AT_HEAD_BIAS + 2 * WIDE * l;
        auto put = [&](int o, float sum) {
            const float z = sum + bias[o % (2 * WIDE)];
            if (l < HIDDEN - 1) b.head[l * size + o] = z;
            b.stage[o] = l < HIDDEN - 1 ? activate(z) : z;
        };
        if (l == 0)
            product1<C, 2>(b, w, room, C, put);
        else
            product1<C, 2, C>(b, w, room, 2 * C, put);
        room = l % 2 ? b.xa : b.xb;
        EXCHANGE(room, 2, WIDE, C);
        fetch(w, b.weights, l < HIDDEN - 1 ? AT_HEAD + 8 * (l + 1) : AT_HEAD_BACK + 8 * (HIDDEN - 1));
        wait_for_cluster(turn++);
    }
    float *last = room + per_cluster(p) * 2 * C; // nothing is pushed there
#pragma unroll 1
    for (int a = b.warp; a < atoms; a += WARPS) {
        const float *z = room + a * 2 * C, *by = b.vectors + AT_HEAD_LAST;
        double output = 0, opening = 0;
#pragma unroll
        for (int h = 0; h < C; h += 32) {
            const int c = h + b.lane;
            output += (double)(activate(z[c]) * by[c]), opening += (double)(activate(z[C + c]) * by[C + c]);
        }
        output = over_warp(output) + p.constants[1], opening = over_warp(opening) + p.constants[2];
        const double share = 1.0 / (1.0 + exp(-opening));
        const float of_output = (float)(share * scale), of_opening = (float)(output * share * (1.0 - share) * scale);
#pragma unroll
        for (int h = 0; h < C; h += 32) {
            const int c = h + b.lane;
            last[a * 2 * C + c] = slope_at(z[c]) * by[c] * of_output;
            last[a * 2 * C + C + c] = slope_at(z[C + c]) * by[C + c] * of_opening;
            if (UNCERTAIN) inputs_of(b, a)[c] = activate(z[c]) * (float)share;
        }
        if (UNCERTAIN && b.lane == 0) inputs_of(b, a)[INPUTS - 1] = (float)share;
        tell_energy(b, a, output * share * scale + b.reference(a));
    }
    __syncthreads();
    if (!p.forces) return;
    room = last;
#pragma unroll 1
    for (int l = HIDDEN - 1; l >= 0; l--) {
        if (l)
            product1<C, 2, C>(b, w, room, 2 * C, [&](int o, float sum) {
                b.stage[o] = sum * slope_at(b.head[(l - 1) * size + o]);
            });
        else
            product1<2 * C, 1>(b, w, room, 2 * C, [&](int o, float sum) { b.stage[o] = sum; });
        room = l % 2 ? b.xb : b.xa;
        if (l) {
            EXCHANGE(room, 2, WIDE, C);
            fetch(w, b.weights, AT_HEAD_BACK + 8 * (l - 1));
        } else {
            EXCHANGE(room, 1, WIDE, C);
        }
        wait_for_cluster(turn++);
    }
    // The last exchange, an even one, was to xa.
#pragma unroll 1
    for (int o = b.tid; o < atoms * C; o += THREADS) b.xa[o] = room[o] * feature_slope(b.features[o]);
    __syncthreads();
}

// From the sums of the embedding to what each edge adds to the forces of its atoms. gate_in: the weights that are needed
// first.
DEV void work_out(Block &b, float (&gate_in)[8], int &turn)
{
    const Params &p = b.p;
    float *const xa = b.xa, *const xb = b.xb;
    const int atoms = b.atoms;
    float w[12], wide[24];
    EACH_OWN(a)
    {
        N9 x = load_own(b.result + a * NINE + b.col);
        x.v[0] += b.own(0)[0] * b.with_itself(a)[b.col];
        store_own(b.keep(a, KEEP_A) + b.col, x);
        store_own(b.stage + a * NINE + b.col, x);
        b.features[a * WIDE + b.col] = squared_norm(x); // no block pushes there before the readout
    }
    EXCHANGE_NINES_AND(xa, b.features, xb, 1);
    fetch(w, b.weights, AT_MIX);
    wait_for_cluster(turn++);
#pragma unroll 1
    for (int a = b.warp; a < atoms; a += WARPS)
        standardise<C>(b, xb + a * C, b.vectors + AT_GATE_SCALE, b.vectors + AT_GATE_OFFSET, p.gate_epsilon, xb + a * C,
                       b.gate_statistics(a));
    __syncthreads();
    product1<C, 2>(b, gate_in, xb, C,
                   [&](int o, float sum) {
                       const float z = sum + b.vectors[AT_GATE_IN_BIAS + o % 32];
                       put_hidden<32>(b, o, z, activate(z));
                   });
    EXCHANGE_HIDDEN(b.hidden, 32, 2 * C);
    fetch(wide, b.weights, AT_GATE_OUT);
    product9(b, w, xa, b.result);
    fetch(w, b.weights, AT_IN);
    EACH_OWN(a) store_own(b.keep(a, KEEP_MIXED) + b.col, load_own(b.result + a * NINE + b.col));
    wait_for_cluster(turn++);
    product1<2 * C, 3>(b, wide, b.v1, 2 * C, [&](int o, float sum) { b.result[o] = sum; });
    __syncthreads();
    EACH_OWN(a)
    {
        float z[3], *gate = b.gate(a) + b.col;
#pragma unroll
        for (int k = 0; k < 3; k++)
            gate[k * WIDE] = z[k] =
                b.result[a * 3 * WIDE + k * WIDE + b.col] + b.vectors[AT_GATE_OUT_BIAS + k * WIDE + b.col];
        const N9 x = scale_parts(load_own(b.keep(a, KEEP_MIXED) + b.col), activate(z[0]), activate(z[1]), activate(z[2]));
        if (LAYERS)
            put_input(b, a, KEEP_X0, 0, x);
        else
            put_last(b, a, x);
    }
    if (LAYERS) {
        EXCHANGE_NINES(xb);
        wait_for_cluster(turn++);
    } else {
        fetch(w, b.weights, AT_READ);
        if (!makes_list(p) && p.forces) find_back(b);
    }
#pragma unroll 1
    for (int l = 0; l < LAYERS; l++) {
        send(b, l, w, xb);
        fetch(w, b.weights, AT_OUT + 12 * l);
        Near near;
        read_near<0, 0>(b, 1 + l, near);
        if (l == 0 && !makes_list(p) && p.forces) find_back(b);
        receive(b, l, near);
        EXCHANGE_NINES(xa);
        wait_for_cluster(turn++);
        product9(b, w, xa, b.result);
        fetch(w, b.weights, l < LAYERS - 1 ? AT_IN + 12 * (l + 1) : (int)AT_READ);
        EACH_OWN(a)
        {
            const N9 d = load_own(b.result + a * NINE + b.col);
            store_own(b.keep(a, KEEP_D0 + A_LAYER * l) + b.col, d);
            const N9 before = load_own(b.keep(a, KEEP_X0 + A_LAYER * l) + b.col);
            const N9 x = add9(add9(before, d), scale9(square(d), b.factor(a)));
            if (l < LAYERS - 1)
                put_input(b, a, KEEP_X0 + A_LAYER * (l + 1), l + 1, x);
            else
                put_last(b, a, x);
        }
        if (l < LAYERS - 1) {
            EXCHANGE_NINES(xb);
            wait_for_cluster(turn++);
        }
    }
    EXCHANGE(xb, 3, WIDE, C);
    wait_for_cluster(turn++);
    float head[16], head_back[16], read_back[12];
    if (!GATED_HEAD) fetch(head, b.weights, AT_HEAD);
#pragma unroll 1
    for (int a = b.warp; a < atoms; a += WARPS)
        standardise<3 * C>(b, xb + a * 3 * C, b.vectors + AT_READ_SCALE, b.vectors + AT_READ_OFFSET, p.read_epsilon,
                           xa + a * 3 * C, b.readout(a));
    __syncthreads();
    product1<3 * C, 1>(b, w, xa, 3 * C, [&](int o, float sum) {
        const float z = sum + b.vectors[AT_READ_BIAS + o % WIDE];
        put_hidden<WIDE>(b, o, z, activate_feature(z));
    });
    EXCHANGE_HIDDEN(b.features, WIDE, C);
    if (!GATED_HEAD) fetch(head_back, b.weights, AT_HEAD_BACK);
    fetch(read_back, b.weights, AT_READ_BACK);
    wait_for_cluster(turn++);
    if (GATED_HEAD)
        gated_head(b, turn);
    else
        plain_head(b, head, head_back);
    if (UNCERTAIN && (!LAYERS || !p.forces)) tell_rows(b);
    if (!p.forces) {
        leave_step(); // others may still copy this block's memory
        all_prepared();
        return;
    }
    product1<C, 3>(b, read_back, xa, C, [&](int o, float sum) { b.result[o] = sum; });
    if (LAYERS) fetch(w, b.weights, AT_OUT_BACK + 12 * (LAYERS - 1));
    if (!LAYERS) fetch(w, b.weights, AT_MIX_BACK), fetch(wide, b.weights, AT_GATE_OUT_BACK);
#pragma unroll 1
    for (int a = b.warp; a < atoms; a += WARPS)
        back_statistics<C>(b, xa + a * C, b.features + a * C, b.vectors + AT_READ_LEVEL, b.vectors + AT_READ_SHIFT,
                           b.readout(a) + 2, 1.0f / (3 * USED));
    if (!LAYERS) leave_step(), all_prepared(); // what follows is pushed to memory that others may still read
    __syncthreads();
    EACH_OWN(a)
    {
        const float *s = b.readout(a);
        const N9 x = load_own(b.keep(a, KEEP_LAST) + b.col);
        float norms[3], g[3];
        part_norms(x, norms);
#pragma unroll
        for (int k = 0; k < 3; k++) {
            const float scaled = b.result[(a * 3 + k) * WIDE + b.col] * b.vectors[AT_READ_SCALE + k * C + b.channel];
            g[k] = s[1] * (scaled - s[2] - (norms[k] - s[0]) * s[1] * s[3]);
        }
        const N9 gx = part_norms_gradient(x, g[0], g[1], g[2]);
        store_own(b.keep(a, KEEP_LAST) + b.col, gx); // from here on the gradient in the current layer's output
        if (LAYERS)
            put_update_gradient(b, a, KEEP_D0 + A_LAYER * (LAYERS - 1), gx);
        else
            put_gate_gradient(b, a, gx);
    }
    if (LAYERS) {
        EXCHANGE_NINES(xb);
        if (UNCERTAIN) tell_rows(b);
        wait_for_cluster(turn++);
    } else if (MOVES)
        draw_all(b, b.number + (p.thermostat == LANGEVIN ? 2 : 1));
#pragma unroll 1
    for (int l = LAYERS - 1; l >= 0; l--) {
        product9(b, w, xb, b.result);
        fetch(w, b.weights, AT_IN_BACK + 12 * l);
        product_gradient(b, l);
        Near near;
        read_near<1, 0>(b, 1 + l, near);
        receive_gradient(b, l, near);
        EXCHANGE_NINES(xa);
        wait_for_cluster(turn++);
        product9(b, w, xa, b.result);
        if (l)
            fetch(w, b.weights, AT_OUT_BACK + 12 * (l - 1));
        else
            fetch(w, b.weights, AT_MIX_BACK), fetch(wide, b.weights, AT_GATE_OUT_BACK);
        // For the next step, or for rescaling at the end of this one, while others are busy with what follows.
        if (MOVES && l == LAYERS - 1) draw_all(b, b.number + (p.thermostat == LANGEVIN ? 2 : 1));
        EACH_OWN(a)
        {
            const N9 g = input_gradient(b, a, KEEP_X0 + A_LAYER * l, l);
            if (l) {
                store_own(b.keep(a, KEEP_LAST) + b.col, g);
                put_update_gradient(b, a, KEEP_D0 + A_LAYER * (l - 1), g);
            } else
                put_gate_gradient(b, a, g);
        }
        if (l) {
            EXCHANGE_NINES(xb);
            wait_for_cluster(turn++);
        }
    }
    EXCHANGE_NINES_AND(xb, b.features, b.v1, 3);
    fetch(gate_in, b.weights, AT_GATE_IN_BACK);
    wait_for_cluster(turn++);
    product1<3 * C, 2>(b, wide, b.v1, 3 * C, [&](int o, float sum) {
        b.stage[o] = sum * slope_at(b.hidden[o / 32 * 2 * C + b.rank * 32 + o % 32]);
    });
    EXCHANGE(xa, 1, 32, 2 * C);
    product9(b, w, xb, b.result);
    EACH_OWN(a) store_own(b.keep(a, KEEP_MIXED) + b.col, load_own(b.result + a * NINE + b.col));
    Near near;
    read_near<1, 1>(b, 0, near);
    if (!makes_list(p)) take_back(b);
    wait_for_cluster(turn++);
    product1<2 * C, 1>(b, gate_in, xa, 2 * C, [&](int o, float sum) { b.result[o] = sum; });
#pragma unroll 1
    for (int a = b.warp; a < atoms; a += WARPS)
        back_statistics<2 * C>(b, xa + a * 2 * C, b.hidden + a * 2 * C, b.vectors + AT_GATE_LEVEL,
                               b.vectors + AT_GATE_SHIFT, b.readout(a) + 2, 1.0f / USED);
    __syncthreads();
    EACH_OWN(a)
    {
        const float *s = b.readout(a), *t = b.gate_statistics(a);
        const N9 x = load_own(b.keep(a, KEEP_A) + b.col);
        const float scaled = b.result[a * WIDE + b.col] * b.vectors[AT_GATE_SCALE + b.channel];
        const float g = t[1] * (scaled - s[2] - (squared_norm(x) - t[0]) * t[1] * s[3]);
        const N9 all = add9(load_own(b.keep(a, KEEP_MIXED) + b.col), part_norms_gradient(x, g, g, g));
        store_own(b.keep(a, KEEP_LAST) + b.col, all);
    }
    __syncthreads();
#pragma unroll 1
    for (int o = b.tid; o < atoms * NINE; o += THREADS) b.result[o] = b.keep(o / NINE, KEEP_LAST)[o % NINE];
    __syncthreads();
    edge_gradients(b, near);
}

DEV void evaluate(const Params &p)
{
    if (MOVES && p.control[1]) return; // a run that has halted
    Block b = {p};
    b.rank = block_rank(), b.cluster = blockIdx.x / SHARES, b.clusters = gridDim.x / SHARES;
    b.tid = threadIdx.x, b.lane = b.tid % 32, b.warp = b.tid / 32, b.col = b.tid % WIDE,
    b.channel = b.rank * WIDE + b.col;
    b.first = b.cluster * per_cluster(p), b.atoms = max(0, min(per_cluster(p), p.num_atoms - b.first));
    b.weights = p.weights + (long long)b.rank * WEIGHTS * THREADS;
    float *at = shared_base();
    b.xa = at, at += per_cluster(p) * 9 * C;
    b.xb = at, at += per_cluster(p) * 9 * C;
    b.v1 = at, at += per_cluster(p) * 3 * C;
    b.hidden = at, at += per_cluster(p) * 2 * C;
    b.features = at, at += per_cluster(p) * C;
    b.result = at, at += per_cluster(p) * NINE;
    b.stages = b.stage = at, at += 2 * per_cluster(p) * NINE;
    b.elements = at, at += per_cluster(p) * 2 * WIDE;
    b.per_atom = at, at += per_cluster(p) * PER_ATOM;
    b.head = at, at += per_cluster(p) * HEAD_ROOM;
    b.vectors = at, at += VECTORS;
    b.stretch = (double *)at, b.counted = (int *)(b.stretch + 5), at += STRETCH;
    b.scratch = at, at += max(WARPS * min(chunk_of(p), per_cluster(p)), lanes_of(p) * per_cluster(p)) * NINE;
    if (p.kept)
        b.kept = p.kept + (long long)blockIdx.x * per_cluster(p) * KEEP_FLOATS;
    else
        b.kept = at, at += per_cluster(p) * KEEP_FLOATS;
    b.particles = (Particle *)at;
    if (makes_list(p)) at += p.num_atoms * (sizeof(Particle) / 4);
    b.heard = (float4 *)at;
    if (hears_all(p)) at += p.num_atoms * 3 * WIDE * 4;
    b.edge_memory = at, b.first_edge = 0, b.num_edges = 0, b.number = MOVES ? p.control[0] : 0;

    if (makes_list(p)) place_edges(b);

    int turn = 0; // of the next exchange
    prepare_exchanges();
    b.remote = remote_of((b.warp + b.rank) % SHARES); // each eighth of the warps pushes to another block
    Arriving arriving;
    if (makes_list(p)) read_particles(b);
    if (MOVES)
        take_motion(b);
    else if (p.given)
        read_coordinates(b, arriving);
    prepare(b);
    if (MOVES) {
        __syncthreads();
        if (p.thermostat == LANGEVIN) draw_all(b, b.number + 1);
        __syncthreads();
    }
    all_prepared();
    if (!MOVES && p.given) bring_in(b, arriving, turn);
    if (b.tid == THREADS - 1)
        shared_launch() = 1 + (unsigned)(count_up(p.counters) / gridDim.x) + (unsigned)p.counters[2];
    if (makes_list(p)) describe_cells(b);
    if (!MOVES && p.given) {
        wait_for_cluster(turn++);
        note_places(b);
        if (b.tid < p.num_atoms) round_place(b, b.tid);
        __syncthreads();
    } else if (!MOVES && !makes_list(p))
        __syncthreads(); // take_list reads what some threads have just prepared
    bool halted = false;
    int done = 0;
#pragma unroll 1
    for (;;) {
        float gate_in[8];
        fetch(gate_in, b.weights, AT_GATE_IN);
        if (!halted) {
            if (MOVES) advance(b);
            if (makes_list(p))
                make_list(b);
            else
                take_list(b);
            __syncthreads();
            embedding_sums(b);
        }
        if (MOVES && done) {
            // Nothing may arrive before a block has read what the last step left there; all halt, or none.
            all_prepared();
            if (shared_halt()) break;
            b.launch++;
        } else
            b.launch = shared_launch();
        work_out(b, gate_in, turn);
        if (p.forces) sum_forces(b);
        done++;
        if (!MOVES) break;
        halted = complete(b, UNCERTAIN && is_doubtful(b));
        b.number += !halted;
        if (done == p.steps) break;
        if (halted && b.tid < SHARES) tell_halt(b.tid);
        leave_step();
    }
    if (UNCERTAIN && gives_uncertainties(b)) {
        give_uncertainties(b);
        if (MOVES && done > halted) keep_uncertainties(b, halted);
    }
    if (!makes_list(p)) {
        if (b.rank == SHARES - 1 && b.warp == 0) sum_energies(b, b.cluster, b.clusters, 0, p.energy, p.energies, 0);
        if (VIRIALS && p.forces && b.rank == SHARES - 1 && b.warp == 1) sum_virials(b, b.cluster, b.clusters);
        return;
    }
    __syncthreads();
    describe_list(b);
    if (gives_out(b)) give_out(b, done);
    if (MOVES && gives_out(b)) keep_motion(b, done > halted, halted);
}

#ifndef EMULATED
extern "C" __global__ void __launch_bounds__(THREADS, 1) one_launch(const __grid_constant__ Params p) { evaluate(p); }
#endif
