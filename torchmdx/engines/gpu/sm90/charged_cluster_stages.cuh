// TensorNet2 of few atoms: what concerns atoms one by one. In kernels between which others work on edges
// (charged_cluster.cu), and in one launch with these (charged_launch.cu). As in one_launch.cu, each cluster of SHARES blocks
// takes some of the atoms, each of its blocks WIDE of their channels, and blocks exchange products in distributed shared
// memory.
#pragma once
#include "charged_cluster_block.cuh"

// What the charges' network makes of the numbers of X; send: also Y, by the matrix w, from X/(|X|^2+1) in `stage`.
// The numbers [atoms][3][WIDE] are in `features` if they go with Y, else in `stage`. first: the network's first weights.
DEV void propose(Block &b, const Charged &q, const Rooms &rooms, int &turn, const float (&w)[12], const float (&first)[12],
                 bool send)
{
    const Params &p = b.p;
    float second[4], third[8];
    if (send) {
        EXCHANGE_NINES_AND(b.xb, b.features, rooms.three, 3);
    } else {
        EXCHANGE(rooms.three, 3, WIDE, C);
    }
    fetch(second, b.weights, IN_SECOND), fetch(third, b.weights, IN_THIRD);
    wait_for_cluster(turn++);
    ROLLED for (int a = b.warp; a < b.atoms; a += WARPS)
        standardise<3 * C>(b, rooms.three + a * 3 * C, rooms.vectors + OF_SCALE, rooms.vectors + OF_OFFSET,
                           q.charge_epsilon, rooms.three + a * 3 * C, b.readout(a));
    __syncthreads();
    product1<3 * C, 1>(b, first, rooms.three, 3 * C, [&](int o, float sum) {
        const float z = sum + rooms.vectors[OF_FIRST + o % WIDE];
        if (o / WIDE < b.atoms) q.first[(b.first + o / WIDE) * C + b.rank * WIDE + o % WIDE] = z;
        b.stage[o] = silu(z);
    });
    EXCHANGE(b.v1, 1, WIDE, C);
    if (send) {
        product9(b, w, b.xb, b.result);
        EACH_OWN(a) store_nine(q.next_y, b.first + a, b.channel, load_own(b.result + a * NINE + b.col));
    }
    wait_for_cluster(turn++);
    product1<C, 1>(b, second, b.v1, C, [&](int o, float sum) {
        const float z = sum + rooms.vectors[OF_SECOND + o % WIDE];
        if (o / WIDE < b.atoms) q.second[(b.first + o / WIDE) * C + b.rank * WIDE + o % WIDE] = z;
        b.stage[o] = silu(z);
    });
    EXCHANGE(b.xa, 1, WIDE, C);
    if (b.rank == 1 && b.tid < b.atoms)
        ((float4 *)q.statistics)[b.first + b.tid] = make_float4(b.gate_statistics(b.tid)[0], b.gate_statistics(b.tid)[1],
                                                               b.readout(b.tid)[0], b.readout(b.tid)[1]);
    wait_for_cluster(turn++);
    product1<C, 2>(b, third, b.xa, C, [&](int o, float sum) {
        if (b.rank == 0 && o / (2 * K) < b.atoms)
            q.proposed[b.first * 2 * K + o] = sum + rooms.vectors[OF_THIRD + o % (2 * K)];
    });
}

// X of an atom as the next layer reads it, to be pushed, and what the charges' network reads of it, in `features`.
DEV void put_input(const Block &b, const Charged &q, int a, N9 x)
{
    float numbers[3];
    charge_numbers(x, numbers);
#pragma unroll
    for (int k = 0; k < 3; k++) b.features[(a * 3 + k) * WIDE + b.col] = numbers[k];
    const float inverse = reciprocal(squared_norm(x) + 1.0f);
    x = scale9(x, inverse);
    q.next_inverse[(b.first + a) * C + b.channel] = inverse;
    store_nine(q.next_x, b.first + a, b.channel, x), store_own(b.stage + a * NINE + b.col, x);
}
// X of an atom after the last layer, and what the charges' network reads of it, to be pushed.
DEV void put_output(const Block &b, const Charged &q, int a, const N9 &x)
{
    float numbers[3];
    charge_numbers(x, numbers);
#pragma unroll
    for (int k = 0; k < 3; k++) b.stage[(a * 3 + k) * WIDE + b.col] = numbers[k];
    store_nine(q.next_x, b.first + a, b.channel, x);
}

// X of the embedding, which goes into the first layer, to be pushed, with what the charges' network reads of it. w, first:
// are made to hold the weights of `propose`.
DEV void embed_atoms(Block &b, const Charged &q, int &turn, float (&w)[12], float (&first)[12])
{
    const Params &p = b.p;
    float gate_in[8], wide[24];
    fetch(gate_in, b.weights, IN_GATE);
    take_list(b);
    __syncthreads();
    if (b.rank == 0)
        ROLLED for (int u = b.tid; u < b.num_edges; u += THREADS) {
            const Edge &e = b.edges[u];
            const long long at = b.first_edge + u;
            q.knot[at] = e.knot;
            ((float4 *)q.place)[at] = make_float4(e.x, e.y, e.z, e.t);
            q.lengths[2 * at] = e.stretch, q.lengths[2 * at + 1] = e.inverse;
        }
    embedding_sums(b);
    EACH_OWN(a)
    {
        N9 x = load_own(b.result + a * NINE + b.col);
        x.v[0] += b.own(0)[0] * b.with_itself(a)[b.col];
        store_nine(q.a, b.first + a, b.channel, x);
        store_own(b.stage + a * NINE + b.col, x);
        b.features[a * WIDE + b.col] = squared_norm(x);
    }
    EXCHANGE_NINES_AND(b.xa, b.features, b.xb, 1);
    fetch(w, b.weights, IN_MIX);
    wait_for_cluster(turn++);
    ROLLED for (int a = b.warp; a < b.atoms; a += WARPS)
        standardise<C>(b, b.xb + a * C, b.vectors + AT_GATE_SCALE, b.vectors + AT_GATE_OFFSET, p.gate_epsilon,
                       b.xb + a * C, b.gate_statistics(a));
    __syncthreads();
    product1<C, 2>(b, gate_in, b.xb, C, [&](int o, float sum) {
        const float z = sum + b.vectors[AT_GATE_IN_BIAS + o % 32];
        if (o / 32 < b.atoms) q.hidden[(b.first + o / 32) * 2 * C + b.rank * 32 + o % 32] = z;
        b.stage[o] = silu(z);
    });
    EXCHANGE(b.v1, 1, 32, 2 * C);
    fetch(wide, b.weights, IN_GATE_OUT);
    product9(b, w, b.xa, b.result);
    fetch(w, b.weights, IN_SEND);
    EACH_OWN(a) store_own(b.keep(a, KEEP_MIXED) + b.col, load_own(b.result + a * NINE + b.col));
    wait_for_cluster(turn++);
    product1<2 * C, 3>(b, wide, b.v1, 2 * C, [&](int o, float sum) { b.result[o] = sum; });
    fetch(first, b.weights, IN_FIRST);
    __syncthreads();
    EACH_OWN(a)
    {
        const int i = b.first + a;
        float z[3];
#pragma unroll
        for (int k = 0; k < 3; k++)
            q.gate[(3 * i + k) * C + b.channel] = z[k] =
                b.result[a * 3 * WIDE + k * WIDE + b.col] + b.vectors[AT_GATE_OUT_BIAS + k * WIDE + b.col];
        const N9 mixed = load_own(b.keep(a, KEEP_MIXED) + b.col);
        store_nine(q.mixed, i, b.channel, mixed);
        put_input(b, q, a, scale_parts(mixed, silu(z[0]), silu(z[1]), silu(z[2])));
    }
}

// cut(r) and its slope for r within the cutoff: see edge_geometry.py.
DEV float2 cosine_cut(float r, float cutoff)
{
    const float turn = 1.5707963267948966f / cutoff, x = turn * r, t = x * x;
    float c = 2.47601369e-05f - 2.60510548e-07f * t, s = 2.60518091e-06f * t - 1.98090563e-04f;
    c = (((c * t - 1.38883609e-03f) * t + 4.16666362e-02f) * t - 4.99999994e-01f) * t + 1.0f;
    s = ((s * t + 8.33305081e-03f) * t - 1.66666580e-01f) * t + 9.99999996e-01f;
    return {c * c, -2.0f * turn * c * s * x};
}

// Sums over the neighbours of each atom, in `result`: of `tensors`, q.y. reverse: of the gradients q.gm instead, by the
// filters of the opposite edges, whose numbers these are.
DEV void charged_messages(const Block &b, const Charged &q, const float *tensors, const int *reverse = 0)
{
    const Params &p = b.p;
    enum { AT_ONCE = 2 };
#pragma unroll 1
    for (int unit = b.warp; unit < b.atoms * lanes_of(p); unit += WARPS) {
        const int a = unit / lanes_of(p), share = unit % lanes_of(p), step = 2 * lanes_of(p);
        const int end = p.row_ptr[b.first + a + 1];
        N9 m = {};
#pragma unroll 1
        for (int base = p.row_ptr[b.first + a] + 2 * share + (b.lane >> 4); base - (b.lane >> 4) < end;
             base += AT_ONCE * step) {
            float z[AT_ONCE][3], cut[AT_ONCE];
            N9 y[AT_ONCE];
#pragma unroll
            for (int r = 0; r < AT_ONCE; r++) {
                const int e = base + r * step, here = min(e, end - 1);
                const bool inside = e < end && q.knot[here] >= 0;
                const float length = 1.0f / q.lengths[2LL * here + 1];
                cut[r] = inside ? cosine_cut(length, q.cutoff).x : 0.0f;
                const int source = inside ? p.source[here] : b.first + a;
                // Rows beyond the cutoff are undefined; that of the atom itself is not.
                const int edge = reverse ? reverse[here] : here;
                const float *row = q.z3 + (long long)(inside ? p.num_atoms + edge : b.first + a) * 3 * C + b.channel;
#pragma unroll
                for (int k = 0; k < 3; k++) z[r][k] = row[k * C];
                y[r] = load_nine(tensors, source, b.channel);
            }
#pragma unroll
            for (int r = 0; r < AT_ONCE; r++) {
                const float f[3] = {silu(z[r][0]) * cut[r], silu(z[r][1]) * cut[r], silu(z[r][2]) * cut[r]};
                add_message(m, f, y[r]);
            }
        }
        put_lane(b, a, share, m);
    }
    sum_lanes(b, b.result);
}

// P = product(Y, M), divided by |P|^2+1, and what its gradient needs, in the places of what an atom keeps.
DEV N9 keep_product(const Block &b, int a, const N9 &y, const N9 &m)
{
    N9 product = message_product(y, m, 1.0f);
    const float inverse = reciprocal(squared_norm(product) + 1.0f);
    b.inverse(a, 2)[b.col] = inverse, product = scale9(product, inverse);
    store_own(b.keep(a, KEEP_Y0) + b.col, y), store_own(b.keep(a, KEEP_M0) + b.col, m);
    store_own(b.keep(a, KEEP_P0) + b.col, product);
    return product;
}

// Messages to D and to the layer's result X, which atoms keep. KEEP: D and M are stored too.
template <bool KEEP> DEV void receive(Block &b, const Charged &q, int &turn)
{
    const Params &p = b.p;
    float w[12];
    fetch(w, b.weights, IN_RECEIVE);
    charged_messages(b, q, q.y);
    EACH_OWN(a)
    {
        const int i = b.first + a;
        const float *own = q.z3 + 3LL * i * C + b.channel;
        const N9 y = load_nine(q.y, i, b.channel);
        const N9 m = add9(load_own(b.result + a * NINE + b.col), scale_parts(y, silu(own[0]), silu(own[C]), silu(own[2 * C])));
        store_own(b.stage + a * NINE + b.col, keep_product(b, a, y, m));
        if (KEEP) store_nine(q.gm, i, b.channel, m);
    }
    EXCHANGE_NINES(b.xa);
    wait_for_cluster(turn++);
    product9(b, w, b.xa, b.result);
    EACH_OWN(a)
    {
        const N9 d = load_own(b.result + a * NINE + b.col);
        const N9 x = add9(add9(load_nine(q.x, b.first + a, b.channel), d), square(d));
        store_own(b.keep(a, KEEP_D0) + b.col, d), store_own(b.keep(a, KEEP_LAST) + b.col, x);
        if (KEEP) store_nine(q.d, b.first + a, b.channel, d);
    }
}

// The hidden layers of the head beyond the first: from `result`, before bias and activation, to `result` of the last one.
// Their values before activations are kept in `three`.
DEV void more_head(const Block &b, const Charged &q, const Rooms &rooms)
{
    const int size = per_cluster(b.p) * HEAD;
#pragma unroll 1
    for (int l = 0; l < q.more_head; l++) {
        float w[8];
        fetch(w, q.head_weights + l * 2 * 8 * THREADS, 0);
        ROLLED for (int o = b.tid; o < b.atoms * HEAD; o += THREADS) {
            const float z = b.result[o] + q.head_biases[l * HEAD + o % HEAD];
            rooms.three[l * size + o] = z, b.v1[o] = silu(z);
        }
        __syncthreads();
        product1<HEAD, 4>(b, w, b.v1, HEAD, [&](int o, float sum) { b.result[o] = sum; });
        __syncthreads();
    }
}
// The gradient in the first hidden layer from that in the last one, both in `stage`.
DEV void more_head_back(const Block &b, const Charged &q, const Rooms &rooms)
{
    const int size = per_cluster(b.p) * HEAD;
#pragma unroll 1
    for (int l = q.more_head - 1; l >= 0; l--) {
        float w[8];
        fetch(w, q.head_weights + (l * 2 + 1) * 8 * THREADS, 0);
        product1<HEAD, 4>(b, w, b.stage, HEAD, [&](int o, float sum) { b.result[o] = sum; });
        __syncthreads();
        ROLLED for (int o = b.tid; o < b.atoms * HEAD; o += THREADS) b.stage[o] = b.result[o] * silu_slope(rooms.three[l * size + o]);
        __syncthreads();
    }
}

// Inputs of the last layer, for the uncertainty of the energy, by a warp.
DEV void store_inputs(const Block &b, int a)
{
    float *to = b.p.last_inputs + (long long)(b.first + a) * LAST_INPUTS;
    ROLLED for (int h = b.lane; h < HEAD; h += 32)
        to[h] = silu(b.result[a * HEAD + h] + b.vectors[AT_HEAD_BIAS + h]);
    if (b.lane == 0) to[HEAD] = 1.0f;
}

// Energies from the tensors X that atoms keep, and the gradient in them: stored, and in their place.
DEV void read_out(Block &b, const Charged &q, const Rooms &rooms, int &turn)
{
    const Params &p = b.p;
    const double scale = p.constants[0], bias = p.constants[1];
    float w[12], head[16], head_back[16], read_back[12];
    fetch(w, b.weights, IN_READ);
    EACH_OWN(a)
    {
        float norms[3];
        part_norms(load_own(b.keep(a, KEEP_LAST) + b.col), norms);
#pragma unroll
        for (int k = 0; k < 3; k++) b.stage[(a * 3 + k) * WIDE + b.col] = norms[k];
    }
    EXCHANGE(b.xb, 3, WIDE, C);
    fetch(head, b.weights, IN_HEAD);
    wait_for_cluster(turn++);
    ROLLED for (int a = b.warp; a < b.atoms; a += WARPS)
        standardise<3 * C>(b, b.xb + a * 3 * C, b.vectors + AT_READ_SCALE, b.vectors + AT_READ_OFFSET, p.read_epsilon,
                           b.xa + a * 3 * C, b.readout(a));
    __syncthreads();
    product1<3 * C, 1>(b, w, b.xa, 3 * C,
                       [&](int o, float sum) { b.stage[o] = sum + b.vectors[AT_READ_BIAS + o % WIDE]; });
    EXCHANGE(b.features, 1, WIDE, C);
    fetch(head_back, b.weights, IN_HEAD_BACK), fetch(read_back, b.weights, IN_READ_BACK);
    wait_for_cluster(turn++);
    ROLLED for (int o = b.tid; o < b.atoms * C; o += THREADS) b.v1[o] = silu(b.features[o]);
    __syncthreads();
    product1<C, 4>(b, head, b.v1, C, [&](int o, float sum) { b.result[o] = sum; });
    __syncthreads();
    more_head(b, q, rooms);
    ROLLED for (int a = b.warp; a < b.atoms; a += WARPS) {
        double output = head_output(b, a, (float)scale);
        if (b.rank == a % SHARES) {
#pragma unroll
            for (int mask = 16; mask; mask >>= 1) output += exchange(output, mask);
            if (b.lane == 0) p.energies[b.first + a] = (output + bias) * scale + b.reference(a);
            if (p.last_inputs) store_inputs(b, a);
        }
    }
    __syncthreads();
    more_head_back(b, q, rooms);
    product1<HEAD, 8>(b, head_back, b.stage, HEAD,
                      [&](int o, float sum) { b.xa[o] = sum * silu_slope(b.features[o]); });
    __syncthreads();
    product1<C, 3>(b, read_back, b.xa, C, [&](int o, float sum) { b.result[o] = sum; });
    ROLLED for (int a = b.warp; a < b.atoms; a += WARPS)
        back_statistics<C>(b, b.xa + a * C, b.features + a * C, b.vectors + AT_READ_LEVEL, b.vectors + AT_READ_SHIFT,
                           b.readout(a) + 2, 1.0f / (3 * C));
    __syncthreads();
    EACH_OWN(a)
    {
        const N9 x = load_own(b.keep(a, KEEP_LAST) + b.col);
        float norms[3], g[3];
        part_norms(x, norms);
#pragma unroll
        for (int k = 0; k < 3; k++)
            g[k] = through_norm(b.result[(a * 3 + k) * WIDE + b.col] * b.vectors[AT_READ_SCALE + k * C + b.channel],
                                norms[k], b.readout(a), b.readout(a) + 2);
        const N9 gx = part_norms_gradient(x, g[0], g[1], g[2]);
        store_nine(q.g, b.first + a, b.channel, gx), store_own(b.keep(a, KEEP_LAST) + b.col, gx);
    }
}

// Gradients in messages and Y from that in D, which is in `stage`, and from what `keep_product` has kept; w: weights.
DEV void messages_gradient(Block &b, const Charged &q, int &turn, const float (&w)[12])
{
    const Params &p = b.p;
    EXCHANGE_NINES(b.xb);
    wait_for_cluster(turn++);
    product9(b, w, b.xb, b.result);
    const bool of_messages = b.warp < WARPS / 2;
    ROLLED for (int o = b.tid % (THREADS / 2); o < b.atoms * WIDE; o += THREADS / 2) {
        const int a = o / WIDE;
        const N9 product = load_own(b.keep(a, KEEP_P0) + b.col);
        const N9 g = normalise_gradient(product, b.inverse(a, 2)[b.col], load_own(b.result + a * NINE + b.col));
        const N9 other = load_own(b.keep(a, of_messages ? KEEP_Y0 : KEEP_M0) + b.col);
        store_nine(of_messages ? q.gm : q.gy, b.first + a, b.channel, message_product_gradient(other, g, 1.0f));
    }
}

DEV void layer(const Given &given)
{
    Block b = {given.common};
    const Rooms rooms = begin(b, given.own);
    int turn = 0;
    receive<false>(b, given.own, turn);
    read_out(b, given.own, rooms, turn);
    float w[12];
    fetch(w, b.weights, IN_RECEIVE_BACK);
    EACH_OWN(a)
    {
        const N9 gx = load_own(b.keep(a, KEEP_LAST) + b.col), d = load_own(b.keep(a, KEEP_D0) + b.col);
        store_own(b.stage + a * NINE + b.col, add9(gx, square_gradient(d, gx)));
    }
    messages_gradient(b, given.own, turn, w);
    end();
}

DEV void embed(const Given &given)
{
    Block b = {given.common};
    const Rooms rooms = begin(b, given.own);
    int turn = 0;
    float w[12], first[12];
    embed_atoms(b, given.own, turn, w, first);
    propose(b, given.own, rooms, turn, w, first, true);
}

DEV void middle(const Given &given)
{
    Block b = {given.common};
    const Rooms rooms = begin(b, given.own);
    int turn = 0;
    receive<true>(b, given.own, turn);
    float w[12], first[12];
    fetch(w, b.weights, IN_SEND), fetch(first, b.weights, IN_FIRST);
    EACH_OWN(a) put_input(b, given.own, a, load_own(b.keep(a, KEEP_LAST) + b.col));
    propose(b, given.own, rooms, turn, w, first, true);
    end();
}

DEV void last(const Given &given)
{
    Block b = {given.common};
    const Rooms rooms = begin(b, given.own);
    int turn = 0;
    receive<true>(b, given.own, turn);
    float first[12];
    fetch(first, b.weights, IN_FIRST);
    EACH_OWN(a) put_output(b, given.own, a, load_own(b.keep(a, KEEP_LAST) + b.col));
    propose(b, given.own, rooms, turn, first, first, false);
    __syncthreads(); // statistics of the charges have been stored
    read_out(b, given.own, rooms, turn);
    end();
}

// v1 [atoms][C]: the gradient in what atoms proposed, and zeros behind it, from gq [atoms][K], that in their charges, and its
// sums over all atoms, f^2 times the gradient; 0: from the gradients in the charges of all atoms in q.gq.
DEV void proposed_gradient(const Block &b, const Charged &q, const float *gq, const double *common)
{
    const Params &p = b.p;
    const int k = b.lane % K, part = 2 * b.warp + b.lane / K;
    double sums[3] = {0, 0, 0}; // of p, f^2, and f^2 times the gradient
#pragma unroll 1
    for (int j = part; j < p.num_atoms; j += 2 * WARPS) {
        const float f = q.proposed[(2 * j + 1) * K + k];
        const double share = (double)(f * f + q.least);
        sums[0] += q.proposed[2 * j * K + k], sums[1] += share;
        if (!common) sums[2] += share * q.gq[j * K + k];
    }
    double *all = (double *)b.scratch; // [WARPS][3][K]
#pragma unroll
    for (int s = 0; s < 3; s++) {
        sums[s] += exchange(sums[s], K);
        if (b.lane < K) all[(3 * b.warp + s) * K + k] = sums[s];
    }
    ROLLED for (int o = b.tid; o < b.atoms * C; o += THREADS) b.v1[o] = 0;
    __syncthreads();
    ROLLED for (int o = b.tid; o < b.atoms * K; o += THREADS) {
        const int a = o / K, i = b.first + a;
        double total[3] = {0, 0, 0};
        for (int u = 0; u < WARPS; u++)
            for (int s = 0; s < 3; s++) total[s] += all[(3 * u + s) * K + k];
        if (common) total[2] = common[k];
        const double missing = wide_value(p.charge, p.wide_charge, 0) - total[0], whole = total[1] + q.slack;
        const double g = gq[o] - total[2] / whole;
        b.v1[a * C + k] = (float)g;
        b.v1[a * C + K + k] = (float)(2.0 * q.proposed[(2 * i + 1) * K + k] * (missing / whole) * g);
    }
    __syncthreads();
}

// h_e of edges of the cluster's atoms, each by one warp, from the gradient in A, xa [SHARES][atoms][9][WIDE].
DEV void charged_edge_gradients(const Block &b, const Charged &q)
{
    const Params &p = b.p;
    const int end = b.atoms ? p.row_ptr[b.first + b.atoms] : 0;
#pragma unroll 1
    for (int e = (b.atoms ? p.row_ptr[b.first] : 0) + b.warp * SHARES + b.rank; e < end; e += SHARES * WARPS) {
        const int knot = q.knot[e], i = p.target[e], a = i - b.first;
        if (knot < 0) continue;
        const float4 place = ((const float4 *)q.place)[e];
        const float x = place.x, y = place.y, z = place.z, stretch = q.lengths[2LL * e],
                    inverse = q.lengths[2LL * e + 1];
        const float *targets = p.targets + p.numbers[i] * C, *sources = p.sources + p.numbers[p.source[e]] * C;
        float along = b.lane < q.pull_parts ? q.pull[(long long)b.lane * p.slots + e] : 0.0f, sx = 0, sy = 0, sz = 0;
        Row rows[C / 32];
#pragma unroll
        for (int c = 0; c < C / 32; c++) rows[c] = read_row(p.table + (long long)knot * INTERVAL + b.lane + 32 * c);
#pragma unroll
        for (int c = 0; c < C / 32; c++) {
            const int channel = b.lane + 32 * c;
            const N9 g = load_own(b.xa + (channel / WIDE * per_cluster(p) + a) * NINE + channel % WIDE);
            const float pair = targets[channel] + sources[channel];
            float f[3], slope[3];
            filters_of<1>(rows[c], place.w, f, slope);
            // Half the gradient of d.G d: contracted with d twice, it is the value itself.
            const float qx = g.v[4] * x + 0.5f * (g.v[5] * y + g.v[6] * z),
                        qy = g.v[7] * y + 0.5f * (g.v[5] * x + g.v[8] * z),
                        qz = 0.5f * (g.v[6] * x + g.v[8] * y), third = (g.v[4] + g.v[7]) * (1.0f / 3.0f);
            along += pair * (slope[0] * g.v[0] + slope[1] * (g.v[1] * x + g.v[2] * y + g.v[3] * z) +
                             slope[2] * (qx * x + qy * y + qz * z - third));
            sx += (f[1] * g.v[1] + 2.0f * f[2] * qx) * pair;
            sy += (f[1] * g.v[2] + 2.0f * f[2] * qy) * pair;
            sz += (f[1] * g.v[3] + 2.0f * f[2] * qz) * pair;
        }
#pragma unroll
        for (int mask = 16; mask; mask >>= 1)
            along += exchange(along, mask), sx += exchange(sx, mask), sy += exchange(sy, mask), sz += exchange(sz, mask);
        const float radial = along * stretch - (sx * x + sy * y + sz * z) * inverse;
        if (b.lane == 0) {
            float *half = q.half + 3LL * e;
            half[0] = radial * x + sx * inverse, half[1] = radial * y + sy * inverse, half[2] = radial * z + sz * inverse;
        }
    }
}

// Calls use(a, g) for this thread's channel of each atom with the gradient g in X: through the charges predicted from it,
// the readout or the layer's output (q.g) and, unless `output`, Y. b.weights: w holds IN_SEND_BACK. fetch_more: is called
// when w is free. gq, common: as for `proposed_gradient`; then the gradient in Y is in `stage`, else in q.gy.
template <class Fetch, class Use>
DEV void input_gradient(Block &b, const Charged &q, const Rooms &rooms, int &turn, float (&w)[12], bool output,
                        const float *gq, const double *common, Fetch fetch_more, Use use)
{
    const Params &p = b.p;
    float third[4], second[4], first[12];
    fetch(third, b.weights, IN_THIRD_BACK), fetch(second, b.weights, IN_SECOND_BACK);
    fetch(first, b.weights, IN_FIRST_BACK);
    if (!output && !common)
        ROLLED for (int o = b.tid; o < b.atoms * 9 * C; o += THREADS) {
            const int a = o / (9 * C), component = o / C % 9, channel = o % C;
            b.xa[(channel / WIDE * per_cluster(p) + a) * NINE + component * WIDE + channel % WIDE] =
                q.gy[9LL * b.first * C + o];
        }
    if (!output && common) {
        EXCHANGE_NINES(b.xa);
    }
    proposed_gradient(b, q, gq, common);
    product1<C, 1>(b, third, b.v1, C, [&](int o, float sum) {
        const int i = min(b.first + o / WIDE, p.num_atoms - 1);
        b.stage[o] = sum * silu_slope(q.second[i * C + b.rank * WIDE + o % WIDE]);
    });
    if (!output && common) wait_for_cluster(turn++);
    EXCHANGE(b.hidden, 1, WIDE, C);
    if (!output) product9(b, w, b.xa, b.result);
    fetch_more();
    wait_for_cluster(turn++);
    product1<C, 1>(b, second, b.hidden, C, [&](int o, float sum) {
        const int i = min(b.first + o / WIDE, p.num_atoms - 1);
        b.stage[o] = sum * silu_slope(q.first[i * C + b.rank * WIDE + o % WIDE]);
    });
    EXCHANGE(b.v1, 1, WIDE, C);
    wait_for_cluster(turn++);
    product1<C, 3>(b, first, b.v1, C, [&](int o, float sum) { rooms.extra[o] = sum; });
    ROLLED for (int a = b.warp; a < b.atoms; a += WARPS)
        back_statistics<C>(b, b.v1 + a * C, q.first + (b.first + a) * C, rooms.vectors + OF_LEVEL,
                           rooms.vectors + OF_SHIFT, b.readout(a) + 2, 1.0f / (3 * C));
    __syncthreads();
    EACH_OWN(a)
    {
        const int i = b.first + a;
        const N9 x = load_nine(q.next_x, i, b.channel);
        N9 g = load_nine(q.g, i, b.channel), whole = x;
        if (!output) {
            const float inverse = q.next_inverse[i * C + b.channel];
            g = normalise_gradient(x, inverse, add9(load_own(b.result + a * NINE + b.col), g));
            whole = scale9(x, 1.0f / inverse);
        }
        float numbers[3], of_charges[3];
        charge_numbers(whole, numbers);
#pragma unroll
        for (int k = 0; k < 3; k++)
            of_charges[k] =
                through_norm(rooms.extra[(a * 3 + k) * WIDE + b.col] * rooms.vectors[OF_SCALE + k * C + b.channel],
                             numbers[k], q.statistics + 4 * i + 2, b.readout(a) + 2);
        g = add9(g, part_norms_gradient(whole, 0.0f, of_charges[1], of_charges[2]));
        g.v[0] += of_charges[0];
        use(a, g);
    }
}

// From the gradient g in a layer's result, which goes on, that in D, to be pushed, and what `messages_gradient` needs.
DEV void put_update_gradient(const Block &b, const Charged &q, int a, const N9 &g)
{
    const int i = b.first + a;
    const N9 d = load_nine(q.d, i, b.channel);
    store_nine(q.g, i, b.channel, g);
    keep_product(b, a, load_nine(q.y, i, b.channel), load_nine(q.gm, i, b.channel));
    store_own(b.stage + a * NINE + b.col, add9(g, square_gradient(d, g)));
}
// From the gradient g in X of the embedding, that in what is gated, to be pushed, and in the gate, in `features`.
DEV void put_gate_gradient(const Block &b, const Charged &q, int a, const N9 &g)
{
    const int i = b.first + a;
    float z[3], dots[3];
    dot_parts(g, load_nine(q.mixed, i, b.channel), dots);
#pragma unroll
    for (int k = 0; k < 3; k++) {
        z[k] = q.gate[(3 * i + k) * C + b.channel];
        b.features[(a * 3 + k) * WIDE + b.col] = dots[k] * silu_slope(z[k]);
    }
    store_own(b.stage + a * NINE + b.col, scale_parts(g, silu(z[0]), silu(z[1]), silu(z[2])));
}

// Gradients in messages and Y of a layer from those in the charges after it and in its result, which go on in Y unless
// OUTPUT.
template <bool OUTPUT> DEV void middle_gradient(const Given &given)
{
    const Charged &q = given.own;
    Block b = {given.common};
    const Rooms rooms = begin(b, given.own);
    int turn = 0;
    float w[12];
    if (!OUTPUT) fetch(w, b.weights, IN_SEND_BACK);
    input_gradient(
        b, q, rooms, turn, w, OUTPUT, q.gq + b.first * K, 0, [&]() { fetch(w, b.weights, IN_RECEIVE_BACK); },
        [&](int a, const N9 &g) { put_update_gradient(b, q, a, g); });
    messages_gradient(b, q, turn, w);
    end();
}

// From what `put_gate_gradient` has put to h_e of the edges.
DEV void embedding_gradient(Block &b, const Charged &q, const Rooms &rooms, int &turn, const float (&w)[12],
                            const float (&wide)[24], const float (&gate_in)[8])
{
    const Params &p = b.p;
    EXCHANGE_NINES_AND(b.xb, b.features, rooms.three, 3);
    wait_for_cluster(turn++);
    product1<3 * C, 2>(b, wide, rooms.three, 3 * C, [&](int o, float sum) {
        const int i = min(b.first + o / 32, p.num_atoms - 1);
        b.stage[o] = sum * silu_slope(q.hidden[i * 2 * C + b.rank * 32 + o % 32]);
    });
    EXCHANGE(b.v1, 1, 32, 2 * C);
    product9(b, w, b.xb, b.result);
    wait_for_cluster(turn++);
    product1<2 * C, 1>(b, gate_in, b.v1, 2 * C, [&](int o, float sum) { rooms.extra[o] = sum; });
    ROLLED for (int a = b.warp; a < b.atoms; a += WARPS)
        back_statistics<2 * C>(b, b.v1 + a * 2 * C, q.hidden + (b.first + a) * 2 * C, b.vectors + AT_GATE_LEVEL,
                               b.vectors + AT_GATE_SHIFT, b.readout(a), 1.0f / C);
    __syncthreads();
    EACH_OWN(a)
    {
        const int i = b.first + a;
        const N9 x = load_nine(q.a, i, b.channel);
        const float g = through_norm(rooms.extra[a * WIDE + b.col] * b.vectors[AT_GATE_SCALE + b.channel],
                                     squared_norm(x), q.statistics + 4 * i, b.readout(a));
        store_own(b.stage + a * NINE + b.col,
                  add9(load_own(b.result + a * NINE + b.col), part_norms_gradient(x, g, g, g)));
    }
    EXCHANGE_NINES(b.xa);
    wait_for_cluster(turn++);
    charged_edge_gradients(b, q);
}

DEV void gradient(const Given &given)
{
    const Charged &q = given.own;
    Block b = {given.common};
    const Rooms rooms = begin(b, given.own);
    int turn = 0;
    float w[12], wide[24], gate_in[8];
    fetch(w, b.weights, IN_SEND_BACK);
    input_gradient(
        b, q, rooms, turn, w, false, q.gq + b.first * K, 0,
        [&]() {
            fetch(wide, b.weights, IN_GATE_OUT_BACK), fetch(w, b.weights, IN_MIX_BACK);
            fetch(gate_in, b.weights, IN_GATE_BACK);
        },
        [&](int a, const N9 &g) { put_gate_gradient(b, q, a, g); });
    embedding_gradient(b, q, rooms, turn, w, wide, gate_in);
    end();
}
