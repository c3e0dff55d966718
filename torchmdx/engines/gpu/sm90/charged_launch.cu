// TensorNet2 of few atoms in one launch, with Coulomb energies of its charges: the stages of charged_cluster.cu, between them
// the network of edges (charged_launch_edges.cuh), and barriers of all blocks.
//
//     forward: embedding, then for each layer barrier, charges, filters, messages; readout
//     back:    Coulomb energies, then for each layer the gradient in messages, filters, barrier, sums over neighbours;
//              embedding, barrier, forces
//
// Charges and Coulomb energies of all atoms are computed by every block, which takes less than a barrier.
#include "charged_launch_edges.cuh"

// All blocks of the grid: what they have stored before `arrive` can be read after `wait`. After `patience` looks in vain a
// block continues, because others were not started, and energies and forces are not numbers.
DEV unsigned long long arrive(const Launch &l)
{
    __syncthreads();
    if (threadIdx.x) return 0;
    publish();
    return (count_up(l.arrived) / gridDim.x + 1) * gridDim.x;
}
DEV void wait(const Launch &l, unsigned long long until)
{
    if (threadIdx.x == 0) {
        int looks = l.common.patience;
        while (look_at(l.arrived, until) < until)
            if (looks-- <= 0 || (looks % 4096 == 0 && __ldcg(l.common.counters + 1))) {
                l.common.counters[1] = 1;
                break;
            }
    }
    __syncthreads();
}

// (s, ds/dr) of the shape of Coulomb energies: see coulomb.py.
DEV float2 shape_of(const Launch &l, float r)
{
    float u, slope;
    if (l.switched) {
        const float x = (r - l.lower) / (l.upper - l.lower), angle = x;
        const bool inside = x > 0 && x < 1;
        u = inside ? 0.5f - 0.5f * cospif(angle) : x > 0 ? 1.0f : 0.0f;
        slope = inside ? 0.5f * 3.14159265f / (l.upper - l.lower) * sinpif(angle) : 0.0f;
    } else {
        const float square = r / l.upper * (r / l.upper);
        const bool inside = square < 1 - 1e-3f;
        const float gap = inside ? 1 - square : 1.0f, d = inside ? expf(1 - 1 / gap) : 0.0f;
        u = 1 - d, slope = d * 2 * r / (l.upper * l.upper * gap * gap);
    }
    return {u / r, (slope - u / r) / r};
}

// Coulomb energies of all pairs: added to the energies of atoms; their forces; and the gradients in all charges, as `gq` of the
// block's atoms and `common`. xa and xb are free.
DEV void coulomb(const Block &b, const Launch &l, const EdgeRooms &r, int sets)
{
    const Params &p = b.p;
    const int n = p.num_atoms, per = per_cluster(p);
    float *shape = b.xa, *pull = shape + n * n;
    ROLLED for (int o = b.tid; o < n * n; o += THREADS) {
        float square = 0;
        for (int k = 0; k < 3; k++) {
            const float u = (float)(wide_value(p.positions, p.wide_positions, 3 * (o % n) + k) -
                                    wide_value(p.positions, p.wide_positions, 3 * (o / n) + k));
            square += u * u;
        }
        shape[o] = o / n == o % n ? 0.0f : shape_of(l, sqrtf(square)).x;
    }
    __syncthreads();
    ROLLED for (int o = b.tid; o < sets * n * K; o += THREADS) {
        const int set = o / (n * K), i = o / K % n, k = o % K;
        const float *charges = r.charges + set * n * K + k;
        float field = 0;
        _Pragma("unroll 4") for (int j = 0; j < n; j++) field += shape[i * n + j] * charges[j * K];
        pull[o] = field * l.strength * l.charge_weights[set * K + k];
        if (i >= b.first && i < b.first + b.atoms) r.gq[(set * per + i - b.first) * K + k] = pull[o];
    }
    __syncthreads();
    ROLLED for (int o = b.warp; o < sets * K; o += WARPS) { // a set's charge by each warp
        const int set = o / K, k = o % K;
        double sum = 0;
        ROLLED for (int i = b.lane; i < n; i += 32) {
            const float f = l.own[set].proposed[(2 * i + 1) * K + k];
            sum += (double)(f * f + l.own[set].least) * pull[set * n * K + i * K + k];
        }
#pragma unroll
        for (int mask = 16; mask; mask >>= 1) sum += exchange(sum, mask);
        if (b.lane == 0) r.common[o] = sum;
    }
    ROLLED for (int a = b.rank; a < b.atoms; a += SHARES) { // the atom's energy and forces, by warps that take partners in turn
        const int i = b.first + a;
        double energy = 0;
        float f[3] = {0, 0, 0};
        if (b.warp == 0)
            ROLLED for (int o = b.lane; o < sets * K; o += 32) {
                const int at = o / K * n * K + i * K + o % K;
                energy += 0.5 * pull[at] * r.charges[at];
            }
        ROLLED for (int j = b.tid; j < n; j += THREADS) {
            if (i == j) continue;
            float u[3], square = 0, product = 0;
            for (int k = 0; k < 3; k++) {
                u[k] = (float)(wide_value(p.positions, p.wide_positions, 3 * j + k) -
                               wide_value(p.positions, p.wide_positions, 3 * i + k));
                square += u[k] * u[k];
            }
            ROLLED for (int set = 0; set < sets; set++)
                for (int k = 0; k < K; k++)
                    product += l.charge_weights[set * K + k] * r.charges[(set * n + i) * K + k] *
                               r.charges[(set * n + j) * K + k];
            const float distance = sqrtf(square), force = l.strength * shape_of(l, distance).y / distance * product;
            for (int k = 0; k < 3; k++) f[k] += force * u[k];
        }
#pragma unroll
        for (int mask = 16; mask; mask >>= 1) {
            energy += exchange(energy, mask);
            for (int k = 0; k < 3; k++) f[k] += exchange(f[k], mask);
        }
        if (b.lane == 0)
            for (int k = 0; k < 3; k++) b.scratch[3 * b.warp + k] = f[k];
        if (b.tid == 0) p.energies[i] += energy;
        __syncthreads();
        if (b.tid < 3) {
            float sum = 0;
            _Pragma("unroll 4") for (int u = 0; u < WARPS; u++) sum += b.scratch[3 * u + b.tid];
            l.forces[3LL * i + b.tid] = sum;
        }
        __syncthreads();
    }
    __syncthreads();
}

// The opposite edges of the cluster's, divided among its blocks.
DEV void find_reverse(const Block &b, const Launch &l)
{
#pragma unroll 1
    for (int u = b.rank + SHARES * b.warp; u < b.num_edges; u += SHARES * WARPS) {
        const int e = b.first_edge + u, found = opposite(b.p, b.lane, e);
        if (b.lane == 0) l.reverse[e] = found < 0 ? e : found;
    }
}

// The whole gradient in Y, in `stage`.
DEV void sum_message_gradients(const Block &b, const Launch &l, const Charged &q)
{
    charged_messages(b, q, q.gm, l.reverse);
    EACH_OWN(a)
    {
        const int i = b.first + a;
        const float *own = q.z3 + 3LL * i * C + b.channel;
        const N9 gm = scale_parts(load_nine(q.gm, i, b.channel), silu(own[0]), silu(own[C]), silu(own[2 * C]));
        store_own(b.stage + a * NINE + b.col,
                  add9(add9(load_own(b.result + a * NINE + b.col), gm), load_nine(q.gy, i, b.channel)));
    }
}

// Forces on the block's share of the cluster's atoms.
DEV void sum_charged_forces(const Block &b, const Launch &l)
{
    const Params &p = b.p;
    const bool failed = __ldcg(p.counters + 1);
#pragma unroll 1
    for (int a = b.rank + SHARES * b.warp; a < b.atoms; a += SHARES * WARPS) {
        const int i = b.first + a;
        float f[3] = {0, 0, 0};
        ROLLED for (int u = b.first_of(a) + b.lane; u < b.end_of(a); u += 32) {
            if (b.edges[u].knot < 0) continue;
            const float *half = l.own[0].half + 3LL * (b.first_edge + u),
                        *back = l.own[0].half + 3LL * l.reverse[b.first_edge + u];
            for (int k = 0; k < 3; k++) f[k] += half[k] - back[k];
        }
#pragma unroll
        for (int mask = 16; mask; mask >>= 1)
            for (int k = 0; k < 3; k++) f[k] += exchange(f[k], mask);
        if (b.lane < 3) {
            const float coulomb = l.charge_weights ? l.forces[3LL * i + b.lane] : 0.0f;
            p.forces[3LL * i + b.lane] = failed ? __uint_as_float(0x7fc00000) : f[b.lane] + coulomb;
        }
    }
}
// The energy of the system, by one warp.
DEV void sum_charged_energies(const Block &b)
{
    const Params &p = b.p;
    const double share = p.shift[0] / max(p.num_atoms, 1), none = __ldcg(p.counters + 1) ? __uint_as_float(0x7fc00000) : 0;
    double sum = 0;
    ROLLED for (int i = b.lane; i < p.num_atoms; i += 32) sum += p.energies[i] = p.energies[i] + share + none;
#pragma unroll
    for (int mask = 16; mask; mask >>= 1) sum += exchange(sum, mask);
    if (b.lane == 0) p.energy[0] = sum;
}

DEV void evaluate_charged(const Launch &l)
{
    const Params &p = l.common;
    Block b = {p};
    const Rooms rooms = begin(b, l.own[0], SCRATCH_OF_MAPS, l.rows * ROW_IN_XA, l.rows * ROW_IN_XB);
    const bool charged = l.charge_weights;
    const int sets = l.layers + charged;
    const EdgeRooms r = edge_rooms(b, b.edge_memory + (sizeof(Edge) / 4 + 1) * p.edge_room, sets, l.rows);
    ROLLED for (int o = b.tid; o < sets * K; o += THREADS) r.common[o] = 0;
    ROLLED for (int o = b.tid; o < sets * per_cluster(p) * K; o += THREADS) r.gq[o] = 0;
    int turn = 0;
    unsigned long long until = 0;
#pragma unroll 1
    for (int k = 0; k <= l.layers; k++) {
        const Charged &q = l.own[k];
        const bool output = k == l.layers;
        float w[12], first[12];
        if (k) {
            wait(l, until);
            take_weights(b, rooms, q);
            equilibrate(b, l.own[k - 1], r, k - 1);
            filters(b, q, l.maps[k - 1], r, l.rows, turn, k - 1);
            receive<true>(b, q, turn);
            fetch(w, b.weights, IN_SEND), fetch(first, b.weights, IN_FIRST);
            EACH_OWN(a)
            {
                const N9 x = load_own(b.keep(a, KEEP_LAST) + b.col);
                if (output)
                    put_output(b, q, a, x);
                else
                    put_input(b, q, a, x);
            }
            if (output && !charged) break;
        } else
            embed_atoms(b, q, turn, w, first);
        propose(b, q, rooms, turn, w, first, !output);
        until = arrive(l);
        if (k == 0) find_reverse(b, l);
    }
    read_out(b, l.own[l.layers], rooms, turn);
    if (charged) {
        wait(l, until);
        equilibrate(b, l.own[l.layers], r, l.layers);
        coulomb(b, l, r, sets);
    }
    float w[12];
#pragma unroll 1
    for (int k = l.layers; k >= 0; k--) {
        const Charged &q = l.own[k];
        const bool output = k == l.layers;
        auto use = [&](int a, const N9 &g) {
            if (k)
                put_update_gradient(b, q, a, g);
            else
                put_gate_gradient(b, q, a, g);
        };
        if (output && !charged) {
            EACH_OWN(a) use(a, load_nine(q.g, b.first + a, b.channel));
            fetch(w, b.weights, IN_RECEIVE_BACK);
        } else {
            if (!output) {
                __syncthreads();
                take_weights(b, rooms, q);
                fetch(w, b.weights, IN_SEND_BACK);
            }
            input_gradient(
                b, q, rooms, turn, w, output, r.gq + k * per_cluster(p) * K, r.common + k * K,
                [&]() { fetch(w, b.weights, k ? (int)IN_RECEIVE_BACK : (int)IN_MIX_BACK); }, use);
        }
        if (!k) break;
        const MapsOf &m = l.maps[k - 1];
        messages_gradient(b, q, turn, w);
        __syncthreads();
        filters_gradient(b, l.own[k - 1], q, m, r, l.rows, turn);
        if (k == 1)
            ROLLED for (int u = b.tid; u < b.num_edges; u += THREADS)
                q.pull[(long long)b.rank * p.slots + b.first_edge + u] = b.pull[u];
        wait(l, arrive(l));
        sum_charge_gradients(b, l, m, r, k - 1);
        sum_message_gradients(b, l, q);
    }
    float wide[24], gate_in[8];
    fetch(wide, b.weights, IN_GATE_OUT_BACK), fetch(gate_in, b.weights, IN_GATE_BACK);
    embedding_gradient(b, l.own[0], rooms, turn, w, wide, gate_in);
    wait(l, arrive(l));
    sum_charged_forces(b, l);
    if (b.cluster == 0 && b.rank == SHARES - 1 && b.warp == WARPS - 1) sum_charged_energies(b);
    end();
}

#ifndef EMULATED
extern "C" __global__ void __launch_bounds__(THREADS, 1) charged_launch(const __grid_constant__ Launch l)
{
    evaluate_charged(l);
}
#endif
