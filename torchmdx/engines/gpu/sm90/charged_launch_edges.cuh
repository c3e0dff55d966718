// The network of edges in one launch of TensorNet2: charges of all atoms, filters of the cluster's edges, and what their
// gradients add to those of edges, charges and neighbours.
//
// The rows of a cluster are its atoms themselves, then its edges. A block makes its own columns of each map, and the blocks
// exchange them for the next one: WIDE of 128, 2 WIDE of 256, and at last the filters of its own channels.
#pragma once
#define ALL_STAGES
#include "charged_cluster_stages.cuh"

enum { MOST_LAYERS = 3, MAP_ROWS = 16, PAD = 8 }; // rows of a product at a time; floats between rows of an exchange
// Quads of a block's weights of each map, and of all of a layer: forward, then back.
enum {
    MIDDLE_STEPS = 2,
    LAST_STEPS = 8,
    LAST_BACK_STEPS = 6,
    MIDDLE_BACK_STEPS = 2,
    LAST_THREADS = 12 * 32,
    AT_MIDDLE_MAP = 0,
    AT_LAST_MAP = AT_MIDDLE_MAP + MIDDLE_STEPS * THREADS,
    AT_LAST_MAP_BACK = AT_LAST_MAP + LAST_STEPS * LAST_THREADS,
    AT_MIDDLE_MAP_BACK = AT_LAST_MAP_BACK + LAST_BACK_STEPS * THREADS,
    MAP_QUADS = AT_MIDDLE_MAP_BACK + MIDDLE_BACK_STEPS * THREADS,
    // Of the vectors: matrix [2K][WIDE] of the charges of target and source, first map of distance 0, biases.
    AT_MATRIX = 0,
    AT_ALONE = AT_MATRIX + 2 * K * WIDE,
    AT_MIDDLE_BIAS = AT_ALONE + WIDE,
    AT_LAST_BIAS = AT_MIDDLE_BIAS + 2 * WIDE,
    MAP_VECTORS = AT_LAST_BIAS + 3 * WIDE,
    SCRATCH_OF_MAPS = 16 * MAP_ROWS * (WIDE + 4) // floats, of the map with the most parts
};

// What a layer needs in addition to `Charged`: see charge_buffers.py. sums [blocks][K]: parts of the sums over all atoms of f^2 times
// the gradient in the charges before it. as_target [N][SHARES][K], as_source [E][SHARES][K]: a block's part of that gradient.
struct MapsOf {
    const float4 *maps;   // [SHARES][MAP_QUADS]
    const float *vectors; // [SHARES][MAP_VECTORS]
    const float4 *table;  // [intervals][2][C], coefficients of the first map
    float *z1, *z2;
    double *sums;
    float *as_target, *as_source;
};
struct Launched {
    const float *charge_weights; // [sets][K] of Coulomb energies; 0: there are none
    int *reverse;                // [E]
    float *forces;               // [N][3] of Coulomb energies
    unsigned long long *arrived;
    float strength, lower, upper;
    int switched, layers, rows;
};
struct Launch : Launched {
    Params common;
    Charged own[MOST_LAYERS + 1]; // of the tensors that go into each layer, and come out of the last
    MapsOf maps[MOST_LAYERS];
};

struct EdgeRooms {
    float *charges;               // [sets][N][K]
    float *shares;                // [N][2][WIDE]
    float *vectors;               // [MAP_VECTORS]
    float *stage, *other;         // what is pushed; the gradient in the first map [rows][WIDE + 1]
    float *of_target, *of_alone;  // [atoms][WIDE]
    float *gq;                    // [sets][atoms][K] gradients in the charges of the block's atoms
    double *common;               // [sets][K] their sums over all atoms, times f^2
};
// Floats of a row in the rooms that rows of the cluster are pushed to: xa, forward with one and back with three times WIDE
// numbers of each block, and xb, with two. The other is free again when all blocks have been heard of in one.
enum { ROW_IN_XA = SHARES * (3 * WIDE + PAD), ROW_IN_XB = SHARES * (2 * WIDE + PAD), ROW_OF_STAGES = 5 * WIDE + 2 * PAD };
DEV EdgeRooms edge_rooms(const Block &b, float *at, int sets, int rows)
{
    const int n = b.p.num_atoms, per = per_cluster(b.p);
    EdgeRooms r;
    r.common = (double *)at, at += 2 * sets * K;
    r.charges = at, at += sets * n * K;
    r.shares = at, at += n * 2 * WIDE;
    r.vectors = at, at += MAP_VECTORS;
    r.of_target = at, at += per * WIDE;
    r.of_alone = at, at += per * WIDE;
    r.gq = at, at += sets * per * K;
    r.stage = at, at += rows * (3 * WIDE + PAD);
    r.other = at;
    return r;
}

// What is missing to the charge of the system and the sum of all weights, for charge k, from what all atoms proposed.
DEV void equilibrate(const Block &b, const Charged &q, const EdgeRooms &r, int set)
{
    const Params &p = b.p;
    const int k = b.tid % K, part = b.tid / K;
    double sums[2] = {0, 0}, *all = (double *)b.scratch; // [2][WARPS][K], then [2][K]
#pragma unroll 1
    for (int j = part; j < p.num_atoms; j += THREADS / K) {
        const float f = q.proposed[(2 * j + 1) * K + k];
        sums[0] += q.proposed[2 * j * K + k], sums[1] += (double)(f * f + q.least);
    }
#pragma unroll
    for (int s = 0; s < 2; s++) {
        sums[s] += exchange(sums[s], K);
        if (b.lane < K) all[(s * WARPS + b.warp) * K + k] = sums[s];
    }
    __syncthreads();
    if (b.tid < 2 * K) {
        double total = 0;
        _Pragma("unroll 4") for (int u = 0; u < WARPS; u++) total += all[(b.tid / K * WARPS + u) * K + k];
        all[2 * WARPS * K + b.tid] = b.tid < K ? wide_value(p.charge, p.wide_charge, 0) - total : total + q.slack;
    }
    __syncthreads();
    ROLLED for (int o = b.tid; o < p.num_atoms * K; o += THREADS) {
        const int j = o / K;
        const float f = q.proposed[(2 * j + 1) * K + k];
        const double each = all[2 * WARPS * K + k] / all[2 * WARPS * K + K + k];
        r.charges[set * p.num_atoms * K + o] = (float)(q.proposed[2 * j * K + k] + (double)(f * f + q.least) * each);
    }
    __syncthreads();
}

// Weights of a map: those of TILES * 16 outputs and W * SHARES inputs, by TILES * GROUPS warps. Each has 16 outputs, and of
// the inputs a part.
template <int STEPS> DEV void fetch_map(float4 (&w)[STEPS], const float4 *from, int threads)
{
#pragma unroll
    for (int s = 0; s < STEPS; s++)
        w[s] = (int)threadIdx.x < threads ? weights4(from + s * threads + threadIdx.x) : make_float4(0, 0, 0, 0);
}
// put(row, output, sum) for all rows from x [SHARES][room][W + PAD]. A barrier must precede; one follows.
template <int W, int TILES, int GROUPS, int STEPS, class Put>
DEV void map_rows(const Block &b, const float4 (&w)[STEPS], const float *x, int room, int rows, Put put)
{
    enum { OUT = 16 * TILES, WIDTH = OUT + 4 };
    static_assert(8 * STEPS * GROUPS == SHARES * W, "all inputs");
    static_assert(GROUPS * MAP_ROWS * WIDTH <= SCRATCH_OF_MAPS, "room");
    const int i = b.lane / 4, j = b.lane % 4, tile = b.warp / GROUPS, group = b.warp % GROUPS;
#pragma unroll 1
    for (int from = 0; from < rows; from += MAP_ROWS) {
        if (tile < TILES) {
            float sums[2][4] = {};
#pragma unroll
            for (int s = 0; s < STEPS; s++) {
                const int inner = 8 * (group * STEPS + s);
                const float *at = x + inner / W * room * (W + PAD) + inner % W + 2 * j;
                const Split<4> weights({w[s].x, w[s].y, w[s].z, w[s].w});
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    const float2 two = *(const float2 *)(at + min(from + 8 * h + i, rows - 1) * (W + PAD));
                    const Split<2> row({two.x, two.y});
                    multiply_add(sums[h], weights.small, row.big);
                    multiply_add(sums[h], weights.big, row.small);
                    multiply_add(sums[h], weights.big, row.big);
                }
            }
            float *to = b.scratch + group * MAP_ROWS * WIDTH + 16 * tile + i;
#pragma unroll
            for (int h = 0; h < 2; h++)
#pragma unroll
                for (int u = 0; u < 4; u++) to[(8 * h + 2 * j + u % 2) * WIDTH + 8 * (u / 2)] = sums[h][u];
        }
        __syncthreads();
#pragma unroll 1
        for (int o = b.tid; o < MAP_ROWS * OUT; o += THREADS) {
            const int row = o / OUT;
            float sum = 0;
#pragma unroll
            for (int g = 0; g < GROUPS; g++) sum += b.scratch[(g * MAP_ROWS + row) * WIDTH + o % OUT];
            if (from + row < rows) put(from + row, o % OUT, sum);
        }
        __syncthreads();
    }
}

// An exchange of `stage` [rows][width] to `to` [SHARES][room][width]. Half of the warps push to this block itself, as in
// push_copies.
DEV void exchange_rows(const Block &b, const float *stage, float *to, int room, int rows, int width, int turn)
{
    before_push();
    __syncthreads();
    if (b.tid == 0) expect(turn, SHARES * rows * width * 4);
    to += b.rank * room * width;
    if (b.warp >= SHARES) {
        const Remote own = remote_of(b.rank);
#pragma unroll 1
        for (int k = b.tid - 32 * SHARES; k < rows * width / 4; k += THREADS - 32 * SHARES)
            push4(own, to + 4 * k, *(const float4 *)(stage + 4 * k), turn);
    } else if (b.warp && b.lane == 0)
        push_all(b.remote, to, stage, 4 * rows * width, turn);
}

// A row of the network: its atoms, its edge in the block (-1: an atom itself), and where it lies in tensors of all rows.
struct MapRow {
    int i, j, edge;
    long long at;
};
DEV MapRow map_row(const Block &b, int row)
{
    if (row < b.atoms) return {b.first + row, b.first + row, -1, b.first + row};
    const int u = row - b.atoms;
    return {b.p.target[b.first_edge + u], b.edges[u].source, u, (long long)b.p.num_atoms + b.first_edge + u};
}
// The first map's part of the distance, and its slope.
DEV float radial_value(const Block &b, const MapsOf &m, const Edge &e, float *slope)
{
    const float4 *row = m.table + (long long)max((int)e.knot, 0) * 2 * C + b.channel;
    const float4 low = __ldg(row), high = __ldg(row + C);
    const float v[TERMS] = {low.x, low.y, low.z, low.w, high.x, high.y}, t = e.knot < 0 ? 0.0f : e.t;
    float value = v[TERMS - 1], derivative = 0;
#pragma unroll
    for (int k = TERMS - 2; k >= 0; k--) derivative = derivative * t + value, value = value * t + v[k];
    *slope = derivative;
    return value;
}

// What the charges of a layer add to the first map of targets and sources.
DEV void take_charges(const Block &b, const EdgeRooms &r, const MapsOf &m, int set)
{
    const Params &p = b.p;
    ROLLED for (int o = b.tid; o < MAP_VECTORS; o += THREADS) r.vectors[o] = m.vectors[b.rank * MAP_VECTORS + o];
    __syncthreads();
    const float *charges = r.charges + set * p.num_atoms * K;
#pragma unroll 1
    for (int o = b.tid; o < p.num_atoms * 2 * WIDE; o += THREADS) {
        const int j = o / (2 * WIDE), side = o / WIDE % 2;
        float sum = 0;
#pragma unroll
        for (int k = 0; k < K; k++) sum += charges[j * K + k] * r.vectors[AT_MATRIX + (side * K + k) * WIDE + o % WIDE];
        r.shares[o] = sum;
    }
    __syncthreads();
}

// z1, z2 and z3 of the cluster's rows and the block's columns, in q and m.
DEV void filters(Block &b, const Charged &q, const MapsOf &m, const EdgeRooms &r, int room, int &turn, int set)
{
    const float4 *maps = m.maps + (long long)b.rank * MAP_QUADS;
    take_charges(b, r, m, set);
    const int all = b.atoms + b.num_edges;
#pragma unroll 1
    for (int from = 0; from < all; from += room) {
        const int rows = min(room, all - from);
        float4 middle[MIDDLE_STEPS], last[LAST_STEPS];
        fetch_map(middle, maps + AT_MIDDLE_MAP, THREADS);
#pragma unroll 1
        for (int o = b.tid; o < rows * WIDE; o += THREADS) {
            const MapRow row = map_row(b, from + o / WIDE);
            float slope, z = row.edge < 0 ? r.vectors[AT_ALONE + b.col] : radial_value(b, m, b.edges[row.edge], &slope);
            z += r.shares[row.i * 2 * WIDE + b.col] + r.shares[row.j * 2 * WIDE + WIDE + b.col];
            m.z1[row.at * C + b.channel] = z;
            r.stage[o / WIDE * (WIDE + PAD) + b.col] = silu(z);
        }
        exchange_rows(b, r.stage, b.xa, room, rows, WIDE + PAD, turn);
        wait_for_cluster(turn++);
        map_rows<WIDE, 2, 8>(b, middle, b.xa, room, rows, [&](int row, int o, float sum) {
            const float z = sum + r.vectors[AT_MIDDLE_BIAS + o];
            m.z2[map_row(b, from + row).at * 2 * C + b.rank * 2 * WIDE + o] = z;
            r.other[row * (2 * WIDE + PAD) + o] = silu(z);
        });
        fetch_map(last, maps + AT_LAST_MAP, LAST_THREADS);
        exchange_rows(b, r.other, b.xb, room, rows, 2 * WIDE + PAD, turn);
        wait_for_cluster(turn++);
        map_rows<2 * WIDE, 3, 4>(b, last, b.xb, room, rows, [&](int row, int o, float sum) {
            q.z3[(map_row(b, from + row).at * 3 + o / WIDE) * C + b.rank * WIDE + o % WIDE] =
                sum + r.vectors[AT_LAST_BIAS + o];
        });
    }
}

// From the gradients in messages, q.gm, and the tensors of neighbours, q.y, those in the filters of a row, in `stage`; to
// `pull` of an edge that in its cutoff function. All threads of a warp call it together.
DEV void put_filter_gradient(const Block &b, const Charged &q, const EdgeRooms &r, int row, const MapRow &at, bool there)
{
    float pull = 0;
    if (there) {
        const bool inside = at.edge < 0 || b.edges[at.edge].knot >= 0;
        float dots[3], z[3], cut = 1, slope = 0;
        if (at.edge >= 0) {
            const Edge &e = b.edges[at.edge];
            const float2 both = cosine_cut(1.0f / e.inverse, q.cutoff);
            cut = both.x, slope = both.y / e.stretch;
        }
        dot_parts(load_nine(q.gm, at.i, b.channel), load_nine(q.y, at.j, b.channel), dots);
#pragma unroll
        for (int k = 0; k < 3; k++) {
            z[k] = q.z3[(at.at * 3 + k) * C + b.channel];
            r.stage[row * (3 * WIDE + PAD) + k * WIDE + b.col] = inside ? dots[k] * silu_slope(z[k]) * cut : 0.0f;
            pull += dots[k] * silu(z[k]);
        }
        pull *= inside ? slope : 0.0f;
        if (!inside) pull = 0;
    }
#pragma unroll
    for (int mask = WIDE / 2; mask; mask >>= 1) pull += exchange(pull, mask);
    if (there && at.edge >= 0 && b.col == 0) b.pull[at.edge] += pull;
}

// From the gradients in messages to those in the first map of the cluster's rows, and what these add to the gradients of edges
// (`pull`) and of charges (as_target, as_source, sums). before: what the charges of the layer are made of.
DEV void filters_gradient(Block &b, const Charged &before, const Charged &q, const MapsOf &m, const EdgeRooms &r, int room,
                          int &turn)
{
    const float4 *maps = m.maps + (long long)b.rank * MAP_QUADS;
    const int all = b.atoms + b.num_edges, k = b.tid % K, part = b.tid / K;
    ROLLED for (int o = b.tid; o < MAP_VECTORS; o += THREADS) r.vectors[o] = m.vectors[b.rank * MAP_VECTORS + o];
    ROLLED for (int o = b.tid; o < b.atoms * WIDE; o += THREADS) r.of_target[o] = 0;
    __syncthreads();
    double sum = 0;
#pragma unroll 1
    for (int from = 0; from < all; from += room) {
        const int rows = min(room, all - from);
        float4 last[LAST_BACK_STEPS], middle[MIDDLE_BACK_STEPS];
        fetch_map(last, maps + AT_LAST_MAP_BACK, THREADS);
#pragma unroll 1
        for (int o = b.tid; o - b.tid < rows * WIDE; o += THREADS) {
            const bool there = o < rows * WIDE;
            put_filter_gradient(b, q, r, o / WIDE, map_row(b, there ? from + o / WIDE : 0), there);
        }
        exchange_rows(b, r.stage, b.xa, room, rows, 3 * WIDE + PAD, turn);
        wait_for_cluster(turn++);
        map_rows<3 * WIDE, 2, 8>(b, last, b.xa, room, rows, [&](int row, int o, float value) {
            const float z = m.z2[map_row(b, from + row).at * 2 * C + b.rank * 2 * WIDE + o];
            r.other[row * (2 * WIDE + PAD) + o] = value * silu_slope(z);
        });
        fetch_map(middle, maps + AT_MIDDLE_MAP_BACK, THREADS);
        exchange_rows(b, r.other, b.xb, room, rows, 2 * WIDE + PAD, turn);
        wait_for_cluster(turn++);
        map_rows<2 * WIDE, 1, 16>(b, middle, b.xb, room, rows, [&](int row, int o, float value) {
            r.stage[row * (WIDE + 1) + o] = value * silu_slope(m.z1[map_row(b, from + row).at * C + b.rank * WIDE + o]);
        });
#pragma unroll 1
        for (int o = b.tid; o - b.tid < rows * WIDE; o += THREADS) {
            const int row = o / WIDE;
            const bool there = o < rows * WIDE && from + row >= b.atoms;
            float pull = 0, slope;
            if (there) {
                const Edge &e = b.edges[from + row - b.atoms];
                radial_value(b, m, e, &slope), pull = e.knot < 0 ? 0.0f : slope * r.stage[row * (WIDE + 1) + b.col];
            }
#pragma unroll
            for (int mask = WIDE / 2; mask; mask >>= 1) pull += exchange(pull, mask);
            if (there && b.col == 0) b.pull[from + row - b.atoms] += pull;
        }
        // Sums over the edges of each atom, and what sources get.
        ROLLED for (int o = b.tid; o < b.atoms * WIDE; o += THREADS) {
            const int a = o / WIDE, first = b.atoms + b.first_of(a) - from, end = b.atoms + b.end_of(a) - from;
            float target = r.of_target[o];
            if (from == 0) target += r.of_alone[o] = r.stage[a * (WIDE + 1) + b.col];
            _Pragma("unroll 4") for (int row = max(first, 0); row < min(end, rows); row++) target += r.stage[row * (WIDE + 1) + b.col];
            r.of_target[o] = target;
        }
        ROLLED for (int row = max(b.atoms - from, 0) + part; row < rows; row += THREADS / K) {
            float source = 0;
#pragma unroll
            for (int c = 0; c < WIDE; c++)
                source += r.stage[row * (WIDE + 1) + c] * r.vectors[AT_MATRIX + (K + k) * WIDE + c];
            const MapRow at = map_row(b, from + row);
            const float f = before.proposed[(2 * at.j + 1) * K + k];
            m.as_source[((long long)(b.first_edge + at.edge) * SHARES + b.rank) * K + k] = source;
            sum += (double)source * (double)(f * f + before.least);
        }
        __syncthreads();
    }
    ROLLED for (int a = part; a < b.atoms; a += THREADS / K) {
        float target = 0;
        const int i = b.first + a;
#pragma unroll
        for (int c = 0; c < WIDE; c++)
            target += r.of_target[a * WIDE + c] * r.vectors[AT_MATRIX + k * WIDE + c] +
                      r.of_alone[a * WIDE + c] * r.vectors[AT_MATRIX + (K + k) * WIDE + c];
        const float f = before.proposed[(2 * i + 1) * K + k];
        m.as_target[((long long)i * SHARES + b.rank) * K + k] = target;
        sum += (double)target * (double)(f * f + before.least);
    }
    double *all_sums = (double *)b.scratch; // [WARPS][K]
    sum += exchange(sum, K);
    if (b.lane < K) all_sums[b.warp * K + k] = sum;
    __syncthreads();
    if (b.tid < K) {
        double total = 0;
        _Pragma("unroll 4") for (int u = 0; u < WARPS; u++) total += all_sums[u * K + k];
        m.sums[(long long)blockIdx.x * K + k] = total;
    }
}

// Adds to gq and `common` of a layer's charges what the filters of all blocks have given.
DEV void sum_charge_gradients(const Block &b, const Launch &l, const MapsOf &m, const EdgeRooms &r, int set)
{
    const Params &p = b.p;
    const int k = b.tid % K, part = b.tid / K;
    double *all = (double *)b.scratch; // [1 + atoms][WARPS][K]
#pragma unroll 1
    for (int a = -1; a < b.atoms; a++) {
        double sum = 0;
        if (a < 0)
            _Pragma("unroll 4") for (int u = part; u < (int)gridDim.x; u += THREADS / K) sum += m.sums[(long long)u * K + k];
        else {
            const int first = b.first_edge + b.first_of(a), count = (1 + b.end_of(a) - b.first_of(a)) * SHARES;
            _Pragma("unroll 4") for (int u = part; u < count; u += THREADS / K) {
                const int e = first + u / SHARES - 1, share = u % SHARES;
                const bool alone = u < SHARES;
                const long long at = alone ? (long long)(b.first + a) * SHARES : (long long)l.reverse[e] * SHARES;
                sum += (alone ? m.as_target : m.as_source)[(at + share) * K + k];
            }
        }
        sum += exchange(sum, K);
        if (b.lane < K) all[((1 + a) * WARPS + b.warp) * K + k] = sum;
    }
    __syncthreads();
    ROLLED for (int o = b.tid; o < (1 + b.atoms) * K; o += THREADS) {
        double total = 0;
        _Pragma("unroll 4") for (int u = 0; u < WARPS; u++) total += all[(o / K * WARPS + u) * K + k];
        if (o < K)
            r.common[set * K + k] += total;
        else
            r.gq[(set * per_cluster(p) + o / K - 1) * K + k] += (float)total;
    }
    __syncthreads();
}
