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
// everything already goes on before this block has read it all.
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

template <int WIDTH> DEV void put_hidden(const Block &b, int o, float z)
{
    b.stage[o] = z, b.stage[per_cluster(b.p) * WIDTH + o] = silu(z);
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
        N9 product = message_product(y, m, b.factor(a));
        const float inverse = reciprocal(squared_norm(product) + 1.0f);
        b.inverse(a, 2 + layer)[b.col] = inverse, product = scale9(product, inverse);
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
        const N9 g = normalise_gradient(product, b.inverse(a, 2 + layer)[b.col], load_own(b.result + a * NINE + b.col));
        const N9 other = load_own(b.keep(a, (first ? KEEP_Y0 : KEEP_M0) + which) + b.col);
        const N9 gradient = message_product_gradient(other, g, b.factor(a));
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
    const N9 g = add9(load_own(b.result + a * NINE + b.col), load_own(b.keep(a, KEEP_X2) + b.col));
    return normalise_gradient(load_own(b.keep(a, which) + b.col), b.inverse(a, l)[b.col], g);
}

// From the sums of the embedding to what each edge adds to the forces of its atoms. gate_in: the weights that are needed
// first.
DEV void work_out(Block &b, float (&gate_in)[8], int &turn)
{
    const Params &p = b.p;
    float *const xa = b.xa, *const xb = b.xb;
    const int atoms = b.atoms;
    const double scale = p.constants[0], bias = p.constants[1];
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
                   [&](int o, float sum) { put_hidden<32>(b, o, sum + b.vectors[AT_GATE_IN_BIAS + o % 32]); });
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
        put_input(b, a, KEEP_X0, 0,
                  scale_parts(load_own(b.keep(a, KEEP_MIXED) + b.col), silu(z[0]), silu(z[1]), silu(z[2])));
    }
    EXCHANGE_NINES(xb);
    wait_for_cluster(turn++);
#pragma unroll 1
    for (int l = 0; l < 2; l++) {
        send(b, l, w, xb);
        fetch(w, b.weights, AT_OUT + 12 * l);
        Near near;
        read_near<0, 0>(b, 1 + l, near);
        if (l == 0 && !makes_list(p)) find_back(b);
        receive(b, l, near);
        EXCHANGE_NINES(xa);
        wait_for_cluster(turn++);
        product9(b, w, xa, b.result);
        fetch(w, b.weights, l == 0 ? AT_IN + 12 : (int)AT_READ);
        EACH_OWN(a)
        {
            const N9 d = load_own(b.result + a * NINE + b.col);
            store_own(b.keep(a, KEEP_D0 + A_LAYER * l) + b.col, d);
            const N9 before = load_own(b.keep(a, KEEP_X0 + A_LAYER * l) + b.col);
            const N9 x = add9(add9(before, d), scale9(square(d), b.factor(a)));
            if (l == 0)
                put_input(b, a, KEEP_X1, 1, x);
            else {
                store_own(b.keep(a, KEEP_X2) + b.col, x);
                float norms[3];
                part_norms(x, norms);
#pragma unroll
                for (int k = 0; k < 3; k++) b.stage[(a * 3 + k) * WIDE + b.col] = norms[k];
            }
        }
        if (l == 0) {
            EXCHANGE_NINES(xb);
            wait_for_cluster(turn++);
        }
    }
    EXCHANGE(xb, 3, WIDE, C);
    wait_for_cluster(turn++);
    float head[16], head_back[16], read_back[12];
    fetch(head, b.weights, AT_HEAD);
#pragma unroll 1
    for (int a = b.warp; a < atoms; a += WARPS)
        standardise<3 * C>(b, xb + a * 3 * C, b.vectors + AT_READ_SCALE, b.vectors + AT_READ_OFFSET, p.read_epsilon,
                           xa + a * 3 * C, b.readout(a));
    __syncthreads();
    product1<3 * C, 1>(b, w, xa, 3 * C,
                       [&](int o, float sum) { put_hidden<WIDE>(b, o, sum + b.vectors[AT_READ_BIAS + o % WIDE]); });
    EXCHANGE_HIDDEN(b.features, WIDE, C);
    fetch(head_back, b.weights, AT_HEAD_BACK);
    fetch(read_back, b.weights, AT_READ_BACK);
    wait_for_cluster(turn++);
    product1<C, 4>(b, head, b.v1, C, [&](int o, float sum) { b.result[o] = sum; });
    __syncthreads();
#pragma unroll 1
    for (int a = b.warp; a < atoms; a += WARPS) {
        double output = head_output(b, a, (float)scale);
        if (b.rank == a % SHARES) {
#pragma unroll
            for (int mask = 16; mask; mask >>= 1) output += exchange(output, mask);
            const double energy = (output + bias) * scale + b.reference(a);
            if (b.lane == 0)
                tell(energies_told(b) + b.first + a,
                     told(b, __int_as_float(__double2loint(energy)), __int_as_float(__double2hiint(energy)), 0));
        }
    }
    __syncthreads();
    product1<HEAD, 8>(b, head_back, b.stage, HEAD, [&](int o, float sum) { xa[o] = sum * silu_slope(b.features[o]); });
    __syncthreads();
    product1<C, 3>(b, read_back, xa, C, [&](int o, float sum) { b.result[o] = sum; });
    fetch(w, b.weights, AT_OUT_BACK + 12);
#pragma unroll 1
    for (int a = b.warp; a < atoms; a += WARPS)
        back_statistics<C>(b, xa + a * C, b.features + a * C, b.vectors + AT_READ_LEVEL, b.vectors + AT_READ_SHIFT,
                           b.readout(a) + 2, 1.0f / (3 * C));
    __syncthreads();
    EACH_OWN(a)
    {
        const float *s = b.readout(a);
        const N9 x = load_own(b.keep(a, KEEP_X2) + b.col);
        float norms[3], g[3];
        part_norms(x, norms);
#pragma unroll
        for (int k = 0; k < 3; k++) {
            const float scaled = b.result[(a * 3 + k) * WIDE + b.col] * b.vectors[AT_READ_SCALE + k * C + b.channel];
            g[k] = s[1] * (scaled - s[2] - (norms[k] - s[0]) * s[1] * s[3]);
        }
        const N9 gx = part_norms_gradient(x, g[0], g[1], g[2]);
        store_own(b.keep(a, KEEP_X2) + b.col, gx); // from here on the gradient in the current layer's output
        put_update_gradient(b, a, KEEP_D1, gx);
    }
    EXCHANGE_NINES(xb);
    wait_for_cluster(turn++);
#pragma unroll 1
    for (int l = 1; l >= 0; l--) {
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
            fetch(w, b.weights, AT_OUT_BACK);
        else
            fetch(w, b.weights, AT_MIX_BACK), fetch(wide, b.weights, AT_GATE_OUT_BACK);
        // For the next step, or for rescaling at the end of this one, while others are busy with what follows.
        if (MOVES && l) draw_all(b, b.number + (p.thermostat == LANGEVIN ? 2 : 1));
        EACH_OWN(a)
        {
            const N9 g = input_gradient(b, a, KEEP_X0 + A_LAYER * l, l);
            if (l) {
                store_own(b.keep(a, KEEP_X2) + b.col, g);
                put_update_gradient(b, a, KEEP_D0, g);
            } else {
                const N9 mixed = load_own(b.keep(a, KEEP_MIXED) + b.col);
                float z[3], dots[3];
                dot_parts(g, mixed, dots);
#pragma unroll
                for (int k = 0; k < 3; k++) {
                    z[k] = b.gate(a)[k * WIDE + b.col];
                    b.features[(a * 3 + k) * WIDE + b.col] = dots[k] * silu_slope(z[k]);
                }
                store_own(b.stage + a * NINE + b.col, scale_parts(g, silu(z[0]), silu(z[1]), silu(z[2])));
            }
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
        b.stage[o] = sum * silu_slope(b.hidden[o / 32 * 2 * C + b.rank * 32 + o % 32]);
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
                               b.vectors + AT_GATE_SHIFT, b.readout(a) + 2, 1.0f / C);
    __syncthreads();
    EACH_OWN(a)
    {
        const float *s = b.readout(a), *t = b.gate_statistics(a);
        const N9 x = load_own(b.keep(a, KEEP_A) + b.col);
        const float scaled = b.result[a * WIDE + b.col] * b.vectors[AT_GATE_SCALE + b.channel];
        const float g = t[1] * (scaled - s[2] - (squared_norm(x) - t[0]) * t[1] * s[3]);
        const N9 all = add9(load_own(b.keep(a, KEEP_MIXED) + b.col), part_norms_gradient(x, g, g, g));
        store_own(b.keep(a, KEEP_D0) + b.col, all);
    }
    __syncthreads();
#pragma unroll 1
    for (int o = b.tid; o < atoms * NINE; o += THREADS) b.result[o] = b.keep(o / NINE, KEEP_D0)[o % NINE];
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
        sum_forces(b);
        done++;
        if (!MOVES) break;
        halted = complete(b);
        b.number += !halted;
        if (done == p.steps) break;
        if (halted && b.tid < SHARES) tell_halt(b.tid);
        leave_step();
    }
    if (!makes_list(p)) {
        if (b.rank == SHARES - 1 && b.warp == 0) sum_energies(b, b.cluster, b.clusters, 0, p.energy, p.energies, 0);
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
