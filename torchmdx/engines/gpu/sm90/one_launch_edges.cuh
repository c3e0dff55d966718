// Edges: geometry, sums over the neighbours of each atom, forward and backward, forces and energies.
#pragma once
#include "one_launch_products.cuh"

// A row of a table, and from it the filters of the three parts at t, and their slopes.
struct Row {
    float4 quad[QUADS];
};
DEV Row read_row(const float4 *at)
{
    Row row;
#pragma unroll
    for (int k = 0; k < QUADS; k++) row.quad[k] = __ldg(at + k * C);
    return row;
}
template <int SLOPES> DEV void filters_of(const Row &row, float t, float *f, float *slope)
{
    float v[4 * QUADS];
#pragma unroll
    for (int k = 0; k < QUADS; k++)
        v[4 * k] = row.quad[k].x, v[4 * k + 1] = row.quad[k].y, v[4 * k + 2] = row.quad[k].z,
                v[4 * k + 3] = row.quad[k].w;
#pragma unroll
    for (int part = 0; part < 3; part++) {
        float df = 0, value = v[3 * (TERMS - 1) + part];
#pragma unroll
        for (int q = TERMS - 2; q >= 0; q--) {
            if (SLOPES) df = df * t + value;
            value = value * t + v[3 * q + part];
        }
        f[part] = value;
        if (SLOPES) slope[part] = df;
    }
}

DEV double wide_value(const void *values, int wide, long long k)
{
    return wide ? ((const double *)values)[k] : (double)((const float *)values)[k];
}

// What the rest of the kernel needs of each atom, in shared memory.
DEV void prepare(const Block &b)
{
    const Params &p = b.p;
    const float4 *vectors = (const float4 *)(p.vectors + b.rank * VECTORS);
#pragma unroll
    for (int k = 0; k < (VECTORS / 4 + THREADS - 1) / THREADS; k++)
        if (b.tid + k * THREADS < VECTORS / 4)
            ((float4 *)b.vectors)[b.tid + k * THREADS] = vectors[b.tid + k * THREADS];
    if (b.tid < 5) b.stretch[b.tid] = p.stretch[b.tid];
    if (b.tid < 2) b.counted[b.tid] = 0;
#pragma unroll 1
    for (int o = b.tid; o < b.atoms * WIDE; o += THREADS) {
        const int a = o / WIDE;
        const long long element = p.numbers[b.first + a], system = p.system[b.first + a], at = element * C + b.channel;
        const float target = p.targets[at], source = p.sources[at];
        b.as_target(a)[b.col] = target, b.with_itself(a)[b.col] = target + source;
        if (b.col == 0) {
            b.factor(a) = 1.0f + 0.1f * (float)wide_value(p.charge, p.wide_charge, system);
            b.reference(a) = p.references[element];
        }
    }
}

// Where the edges of the block lie, in shared memory if they fit; those of a whole step do.
DEV void place_edges(Block &b)
{
    const Params &p = b.p;
    if (makes_list(p) || b.num_edges <= p.edge_room)
        b.edges = (Edge *)b.edge_memory, b.pull = b.edge_memory + 8 * p.edge_room;
    else {
        b.edges = p.edges + (long long)b.rank * p.slots + b.first_edge;
        b.pull = p.pull + (long long)b.rank * p.slots + b.first_edge;
    }
}

const double SAME_PLACE = 1e-4; // Å, that of torchmdx/evaluation/derivatives.py: the direction of shorter edges is NaN

// Edge u along the vector v.
DEV void put_edge(const Block &b, int u, const double *v, int source, int element)
{
    const Params &p = b.p;
    double square = v[0] * v[0] + v[1] * v[1] + v[2] * v[2];
    if (square < SAME_PLACE * SAME_PLACE) square = __uint_as_float(0x7fc00000);
    const double inverse = rsqrt(square), r = square * inverse;
    const double decay = b.stretch[2] * exp(-b.stretch[3] * r), x = b.stretch[0] + b.stretch[1] * r + decay;
    // NaN counts as inside, so that it reaches the energy.
    const int knot = !(x > 0) ? 0 : x > p.last_interval ? p.last_interval : (int)x;
    Edge edge = {(float)(v[0] * inverse),
                 (float)(v[1] * inverse),
                 (float)(v[2] * inverse),
                 (float)(x - knot),
                 (float)(b.stretch[1] - b.stretch[3] * decay),
                 (float)inverse,
                 (unsigned short)source,
                 NOWHERE,
                 (short)(r >= b.stretch[4] ? -1 : knot),
                 (short)element};
    b.edges[u] = edge;
    b.pull[u] = 0;
}

// The edges of the list that was given.
DEV void take_list(Block &b)
{
    const Params &p = b.p;
    if (b.atoms) {
        b.first_edge = p.row_ptr[b.first];
        b.num_edges = p.row_ptr[b.first + b.atoms] - b.first_edge;
    }
    place_edges(b);
#pragma unroll 1
    for (int a = b.tid; a < b.atoms; a += THREADS)
        b.first_of(a) = p.row_ptr[b.first + a] - b.first_edge,
        b.end_of(a) = p.row_ptr[b.first + a + 1] - b.first_edge;
#pragma unroll 1
    for (int u = b.tid; u < b.num_edges; u += THREADS) {
        const int e = b.first_edge + u, i = p.target[e], j = p.source[e];
        const long long cell = p.num_systems == 1 ? 0 : 9 * p.system[i];
        const double sa = p.shifts[3LL * e], sb = p.shifts[3LL * e + 1], sc = p.shifts[3LL * e + 2];
        const int element = (int)p.numbers[j];
        double v[3];
#pragma unroll
        for (int k = 0; k < 3; k++)
            v[k] =
                wide_value(p.positions, p.wide_positions, 3LL * j + k) -
                wide_value(p.positions, p.wide_positions, 3LL * i + k) +
                (sa * wide_value(p.cell, p.wide_cell, cell + k) + sb * wide_value(p.cell, p.wide_cell, cell + 3 + k) +
                 sc * wide_value(p.cell, p.wide_cell, cell + 6 + k));
        put_edge(b, u, v, j, element);
    }
}

// Sums of the lanes of an atom, [atoms][9][WIDE], from scratch [lanes][atoms][9][WIDE].
DEV void sum_lanes(const Block &b, float *result)
{
    __syncthreads();
#pragma unroll 1
    for (int o = b.tid; o < b.atoms * NINE; o += THREADS) {
        float sum = 0;
        EACH_ROW for (int u = 0; u < lanes_of(b.p); u++) sum += b.scratch[u * rows_of(b.p, b.atoms) * NINE + o];
        result[o] = sum;
    }
    __syncthreads();
}

DEV void put_lane(const Block &b, int a, int share, const N9 &m)
{
    const int half = b.lane >> 4;
    float *to = b.scratch + (share * rows_of(b.p, b.atoms) + a) * NINE + b.col;
#pragma unroll
    for (int j = 0; j < 8; j += 2) to[(j + half) * WIDE] = halves(m.v[j], m.v[j + 1], half);
    float last = m.v[8] + exchange(m.v[8], 16);
    if (!half) to[8 * WIDE] = last;
}

#define EACH_SHARE(a, share)                                                                                           \
    _Pragma("unroll 1") for (int unit = b.warp; unit < b.atoms * lanes_of(b.p); unit += WARPS) for (                   \
        int a = unit / lanes_of(b.p), share = unit % lanes_of(b.p), once = 1; once; once = 0)
// ROUNDS edges of an atom, for each half of a warp: source, and filters of a table, 0 beyond the cutoff and after the last
// edge, where the source is the atom itself. Those of the warp's first unit are read while a block waits for what they are
// multiplied with, all of them at once (`near`).
enum { ROUNDS = 2 };
struct Near {
    int at[ROUNDS], source[ROUNDS];
    float f[ROUNDS][3], slope[ROUNDS][3], pair[ROUNDS]; // pair: of both elements' embeddings
};
// The edges of a unit, the share of an atom, from `first` on.
template <int SLOPES, int PAIRS>
DEV void read_edges(const Block &b, int which, int a, int first, int end, Near &near)
{
    const Params &p = b.p;
    const float4 *table = p.table + which * p.table_size + b.channel;
    Row rows[ROUNDS];
    float t[ROUNDS];
#pragma unroll
    for (int r = 0; r < ROUNDS; r++) {
        const int u = first + 2 * r * lanes_of(p) + (b.lane >> 4);
        const int knot = u < end ? b.edges[u].knot : -1;
        const bool inside = knot >= 0;
        near.at[r] = inside ? u : -1, near.source[r] = inside && GATHERS ? b.edges[u].source : b.first + a;
        t[r] = inside ? b.edges[u].t : 0;
        if (PAIRS) near.pair[r] = b.as_target(a)[b.col] + p.sources[(inside ? b.edges[u].element : 0) * C + b.channel];
        rows[r] = read_row(table + (long long)max(knot, 0) * INTERVAL);
    }
#pragma unroll
    for (int r = 0; r < ROUNDS; r++) {
        filters_of<SLOPES>(rows[r], t[r], near.f[r], near.slope[r]);
#pragma unroll
        for (int part = 0; part < 3; part++) {
            if (near.at[r] < 0) near.f[r][part] = 0;
            if (SLOPES && near.at[r] < 0) near.slope[r][part] = 0;
        }
    }
}
template <int SLOPES, int PAIRS> DEV void read_near(const Block &b, int which, Near &near)
{
    const bool some = b.warp < b.atoms * lanes_of(b.p);
    const int a = some ? b.warp / lanes_of(b.p) : 0, share = b.warp % lanes_of(b.p);
    read_edges<SLOPES, PAIRS>(b, which, a, some ? b.first_of(a) + 2 * share : 0, some ? b.end_of(a) : 0, near);
}
// All edges of a share, ROUNDS at a time: in `now`, which begins with those of `near` where they are of this unit.
#define EACH_EDGES(a, share, now, near, SLOPES, PAIRS, which)                                                          \
    Near now = near;                                                                                                   \
    const int end_ = b.end_of(a);                                                                                      \
    int first_ = b.first_of(a) + 2 * share;                                                                            \
    if (MAY_HAVE_OTHERS && unit != b.warp) read_edges<SLOPES, PAIRS>(b, which, a, first_, end_, now);                  \
    _Pragma("unroll 1") for (bool again_ = true; again_;                                                               \
                             first_ += 2 * ROUNDS * lanes_of(b.p), again_ = MAY_HAVE_OTHERS && first_ < end_,          \
                                  again_ ? read_edges<SLOPES, PAIRS>(b, which, a, first_, end_, now) : (void)0)

// Where the nine components of an atom of a layer begin, in this lane's channel.
DEV long long nine_of(const Block &b, int layer, int atom)
{
    return ((long long)layer * b.p.num_atoms + atom) * 3 * C + b.channel;
}
DEV void hear_near(const Block &b, const float4 *nines, int layer, const Near &near, N9 (&there)[ROUNDS])
{
    if (hears_all(b.p)) {
#pragma unroll
        for (int r = 0; r < ROUNDS; r++) there[r] = heard_of(b, near.source[r]);
        return;
    }
    const float4 *from[ROUNDS];
#pragma unroll
    for (int r = 0; r < ROUNDS; r++) from[r] = near.at[r] >= 0 ? nines + nine_of(b, layer, near.source[r]) : 0;
    hear_nine(b, from, there);
}
DEV void add_embedding(N9 &m, const Edge &e, const float *f, float pair)
{
    const float scalar = f[0] * pair, vector = f[1] * pair, q = f[2] * pair;
    m.v[0] += scalar;
    m.v[1] += vector * e.x, m.v[2] += vector * e.y, m.v[3] += vector * e.z;
    m.v[4] += q * (e.x * e.x - 1.0f / 3.0f), m.v[5] += q * (e.x * e.y), m.v[6] += q * (e.x * e.z);
    m.v[7] += q * (e.y * e.y - 1.0f / 3.0f), m.v[8] += q * (e.y * e.z);
}

DEV void embedding_sums(const Block &b)
{
    Near near;
    read_near<0, 1>(b, 0, near);
    EACH_SHARE(a, share)
    {
        N9 m = {};
        EACH_EDGES(a, share, now, near, 0, 1, 0)
#pragma unroll
            for (int r = 0; r < ROUNDS; r++)
                if (now.at[r] >= 0) add_embedding(m, b.edges[now.at[r]], now.f[r], now.pair[r]);
        put_lane(b, a, share, m);
    }
    sum_lanes(b, b.result);
}

DEV void add_message(N9 &m, const float *f, const N9 &there)
{
#pragma unroll
    for (int k = 0; k < 9; k++) m.v[k] += (k == 0 ? f[0] : k < 4 ? f[1] : f[2]) * there.v[k];
}

DEV void messages(const Block &b, int layer, const Near &near)
{
    const Params &p = b.p;
    if (hears_all(p)) hear_all(b, p.y, layer);
    EACH_SHARE(a, share)
    {
        N9 m = {};
        EACH_EDGES(a, share, now, near, 0, 0, layer + 1)
        {
            N9 there[ROUNDS];
            hear_near(b, p.y, layer, now, there);
#pragma unroll
            for (int r = 0; r < ROUNDS; r++) add_message(m, now.f[r], there[r]);
        }
        put_lane(b, a, share, m);
    }
    sum_lanes(b, b.result);
}

// Sums of two numbers over the columns, of the first in the lower half of the columns and of the second in the upper half.
DEV float over_columns(const Block &b, float first, float second)
{
    const bool upper = b.col >= WIDE / 2;
    float v = (upper ? second : first) + exchange(upper ? first : second, WIDE / 2);
#pragma unroll
    for (int mask = WIDE / 4; mask; mask >>= 1) v += exchange(v, mask);
    return v;
}
// The edge of the round whose sum a thread has; -1 for none, and for all but one thread of each half.
DEV int summed(const Block &b, const Near &near)
{
    static_assert(ROUNDS == 2, "one round for each half of the columns");
    return b.col == 0 ? near.at[0] : b.col == WIDE / 2 ? near.at[1] : -1;
}

DEV float along_edge(const N9 &own, const N9 &there, const float *slope)
{
    float part[3];
    dot_parts(own, there, part);
    return slope[0] * part[0] + slope[1] * part[1] + slope[2] * part[2];
}

DEV void messages_gradient(const Block &b, int layer, const Near &near)
{
    const Params &p = b.p;
    if (hears_all(p)) hear_all(b, p.gm, layer);
    EACH_SHARE(a, share)
    {
        N9 m = {};
        const N9 own = load_own(b.keep(a, KEEP_Y0 + A_LAYER * layer) + b.col);
        EACH_EDGES(a, share, now, near, 1, 0, layer + 1)
        {
            N9 there[ROUNDS];
            hear_near(b, p.gm, layer, now, there);
#pragma unroll
            for (int r = 0; r < ROUNDS; r++) add_message(m, now.f[r], there[r]);
            const float along =
                over_columns(b, along_edge(own, there[0], now.slope[0]), along_edge(own, there[1], now.slope[1]));
            if (summed(b, now) >= 0) b.pull[summed(b, now)] += along;
        }
        put_lane(b, a, share, m);
    }
    sum_lanes(b, b.result);
}

// Where blocks tell what edge u from atom j to atom i adds to forces, and where that of the other direction; -1 for
// nowhere. In a whole step each pair of atoms has its place.
DEV int told_at(const Block &b, int i, int j, int u)
{
    return makes_list(b.p) ? i * b.p.num_atoms + j : b.first_edge + u;
}
DEV int told_back_at(const Block &b, int i, int j, int u)
{
    if (makes_list(b.p)) return j * b.p.num_atoms + i;
    return b.edges[u].back == NOWHERE ? -1 : b.edges[u].back;
}

// What one channel adds to h_e of edge u, besides the pull of the messages, from the gradient in A and the channel's
// filters, slopes and embeddings; u < 0: nothing.
struct Vector {
    float x, y, z;
};
DEV Vector edge_gradient(const Block &b, int u, const N9 &g, const float *f, const float *slope, float pair)
{
    if (u < 0) return {};
    const Edge &e = b.edges[u];
    const float x = e.x, y = e.y, z = e.z;
    // Half the gradient of d.G d: contracted with d twice, it is the value itself.
    const float qx = g.v[4] * x + 0.5f * (g.v[5] * y + g.v[6] * z),
                qy = g.v[7] * y + 0.5f * (g.v[5] * x + g.v[8] * z);
    const float qz = 0.5f * (g.v[6] * x + g.v[8] * y), third = (g.v[4] + g.v[7]) * (1.0f / 3.0f);
    const float along = pair * (slope[0] * g.v[0] + slope[1] * (g.v[1] * x + g.v[2] * y + g.v[3] * z) +
                                slope[2] * (qx * x + qy * y + qz * z - third));
    const float sx = (f[1] * g.v[1] + 2.0f * f[2] * qx) * pair, sy = (f[1] * g.v[2] + 2.0f * f[2] * qy) * pair,
                sz = (f[1] * g.v[3] + 2.0f * f[2] * qz) * pair;
    const float radial = along * e.stretch - (sx * x + sy * y + sz * z) * e.inverse;
    return {radial * x + sx * e.inverse, radial * y + sy * e.inverse, radial * z + sz * e.inverse};
}

// Tells h_e, the sums over the channels and the pull; i: the edge's atom.
DEV void tell_gradient(const Block &b, float4 *half, int i, int u, const Vector &h)
{
    const Edge &e = b.edges[u];
    const float radial = b.pull[u] * e.stretch;
    tell(half + told_at(b, i, e.source, u), told(b, h.x + radial * e.x, h.y + radial * e.y, h.z + radial * e.z));
}

// h_e of this block's channels, from the gradient in A, result [atoms][9][WIDE].
DEV void edge_gradients(const Block &b, const Near &near)
{
    const Params &p = b.p;
    float4 *half = p.half + (long long)b.rank * p.told_slots;
    EACH_SHARE(a, share)
    {
        const N9 g = load_own(b.result + a * NINE + b.col);
        const int i = b.first + a;
        EACH_EDGES(a, share, now, near, 1, 1, 0)
        {
            const Vector h = edge_gradient(b, now.at[0], g, now.f[0], now.slope[0], now.pair[0]),
                         k = edge_gradient(b, now.at[1], g, now.f[1], now.slope[1], now.pair[1]);
            const Vector sum = {over_columns(b, h.x, k.x), over_columns(b, h.y, k.y), over_columns(b, h.z, k.z)};
            if (summed(b, now) >= 0) tell_gradient(b, half, i, summed(b, now), sum);
        }
    }
}

// The other direction of each edge of the cluster's atoms, divided among its blocks.
DEV void find_back(const Block &b)
{
    const Params &p = b.p;
#pragma unroll 1
    for (int u = b.rank + SHARES * b.warp; u < b.num_edges; u += SHARES * WARPS) {
        const int e = b.first_edge + u, found = opposite(p, b.lane, e);
        if (b.lane == 0) tell(p.back + e, told(b, __int_as_float(found), 0, 0));
    }
}

// The other directions of the edges whose forces this block sums.
DEV void take_back(const Block &b)
{
#pragma unroll 1
    for (int a = b.rank; a < b.atoms; a += SHARES)
#pragma unroll 1
        for (int u = b.first_of(a) + b.tid; u < b.end_of(a); u += THREADS) {
            const float4 *const from[1] = {b.p.back + b.first_edge + u};
            float4 heard[1];
            hear(b, from, heard);
            b.edges[u].back = is_told(b, heard[0]) ? (unsigned short)__float_as_int(heard[0].x) : NOWHERE;
        }
}

// Forces on atoms and, where the kernel has virials, of each atom those of its edges: xx, yy, zz, xy, xz, yz.
DEV void sum_forces(const Block &b)
{
    enum { NUMBERS = VIRIALS ? 9 : 3 };
    const Params &p = b.p;
    const int share = b.lane % SHARES, part = b.tid / SHARES;
    const float4 *half = p.half + (long long)share * p.told_slots;
#pragma unroll 1
    for (int a = b.rank; a < b.atoms; a += SHARES) {
        const int i = b.first + a;
        float f[9] = {};
#pragma unroll 1
        for (int u = b.first_of(a) + part; u < b.end_of(a); u += THREADS / SHARES) {
            const Edge &e = b.edges[u];
            if (e.knot < 0) continue;
            const int j = e.source, back = told_back_at(b, i, j, u);
            const float4 *const from[2] = {half + told_at(b, i, j, u), back < 0 ? 0 : half + back};
            float4 heard[2];
            hear(b, from, heard);
            const float4 h = heard[0], g = heard[1];
            f[0] += h.x - g.x, f[1] += h.y - g.y, f[2] += h.z - g.z;
            if (VIRIALS) {
                const float r = 1.0f / e.inverse, x = r * e.x, y = r * e.y, z = r * e.z;
                f[3] += h.x * x, f[4] += h.y * y, f[5] += h.z * z;
                f[6] += 0.5f * (h.x * y + h.y * x), f[7] += 0.5f * (h.x * z + h.z * x);
                f[8] += 0.5f * (h.y * z + h.z * y);
            }
        }
#pragma unroll
        for (int mask = 16; mask; mask >>= 1)
#pragma unroll
            for (int k = 0; k < NUMBERS; k++) f[k] += exchange(f[k], mask);
        float *sums = b.scratch;
        if (a >= SHARES) __syncthreads(); // the sums before have been read
        if (b.lane == 0)
#pragma unroll
            for (int k = 0; k < NUMBERS; k++) sums[NUMBERS * b.warp + k] = f[k];
        __syncthreads();
        if (b.warp == 0) {
            float sum = 0; // of one component by each lane
#pragma unroll
            for (int u = 0; u < WARPS; u++) sum += sums[NUMBERS * u + min(b.lane, NUMBERS - 1)];
#pragma unroll
            for (int k = 0; k < NUMBERS; k++) f[k] = exchange(sum, k);
            if (b.lane) continue;
            if (makes_list(p))
                tell(forces_told(b) + i, told(b, f[0], f[1], f[2]));
            else
                p.forces[3LL * i] = f[0], p.forces[3LL * i + 1] = f[1], p.forces[3LL * i + 2] = f[2];
            if (VIRIALS)
#pragma unroll
                for (int k = 0; k < 2; k++)
                    tell(virials_told(b) + 2 * i + k, told(b, f[3 * k + 3], f[3 * k + 4],
                                                           f[3 * k + 5]));
        }
    }
}

// The virial of systems from `first` on, one by a warp, and the stress, not a number without a volume.
DEV void sum_virials(const Block &b, int first, int step)
{
    const Params &p = b.p;
#pragma unroll 1
    for (int s = first; s < p.num_systems; s += step) {
        double sum[6] = {};
#pragma unroll 1
        for (int i = b.lane; i < p.num_atoms; i += 32)
            if (p.num_systems == 1 || p.system[i] == s) {
                const float4 *const from[2] = {virials_told(b) + 2 * i, virials_told(b) + 2 * i + 1};
                float4 heard[2];
                hear(b, from, heard);
#pragma unroll
                for (int k = 0; k < 2; k++)
                    sum[3 * k] += heard[k].x, sum[3 * k + 1] += heard[k].y, sum[3 * k + 2] += heard[k].z;
            }
#pragma unroll
        for (int mask = 16; mask; mask >>= 1)
#pragma unroll
            for (int k = 0; k < 6; k++) sum[k] += exchange(sum[k], mask);
        double c[9];
#pragma unroll
        for (int k = 0; k < 9; k++) c[k] = wide_value(p.cell, p.wide_cell, 9LL * s + k);
        const double volume = fabs((c[1] * c[5] - c[2] * c[4]) * c[6] + (c[2] * c[3] - c[0] * c[5]) * c[7] +
                                   (c[0] * c[4] - c[1] * c[3]) * c[8]);
        const double part = volume > 0 ? 1.0 / volume : __uint_as_float(0x7fc00000);
        if (b.lane == 0)
#pragma unroll
            for (int k = 0; k < 9; k++) {
                const int row = k / 3, column = k % 3;
                const double value = sum[row == column ? row : row + column + 2]; // 01: 3, 02: 4, 12: 5
                p.virial[9LL * s + k] = value;
                if (p.stress) p.stress[9LL * s + k] = value * part;
            }
    }
}

// The energy of systems from `first` on, one by each warp; its atoms share the potential's shift. kept: particles that
// have the energies of atoms, or 0 where they have been told. energies [N], and wrong [N], whether an atom's energy is
// not finite: 0 where they are not wanted.
DEV void sum_energies(const Block &b, int first, int step, const Particle *kept, double *energy, double *energies,
                      int *wrong)
{
    const Params &p = b.p;
#pragma unroll 1
    for (int s = first; s < p.num_systems; s += step) {
        int count = p.num_systems == 1 ? p.num_atoms : 0;
        if (p.num_systems > 1) {
#pragma unroll 1
            for (int i = b.lane; i < p.num_atoms; i += 32) count += p.system[i] == s;
#pragma unroll
            for (int mask = 16; mask; mask >>= 1) count += exchange(count, mask);
        }
        const double share = p.shift[0] / max(count, 1);
        double sum = 0;
#pragma unroll 1
        for (int i = b.lane; i < p.num_atoms; i += 32)
            if (p.num_systems == 1 || p.system[i] == s) {
                double own;
                if (kept)
                    own = kept[i].energy;
                else {
                    const float4 *const from[1] = {energies_told(b) + i};
                    float4 heard[1];
                    hear(b, from, heard);
                    own = energy_of(heard[0]);
                }
                own += share;
                if (energies) energies[i] = own;
                if (wrong) wrong[i] = own - own != 0;
                sum += own;
            }
#pragma unroll
        for (int mask = 16; mask; mask >>= 1) sum += exchange(sum, mask);
        if (b.lane == 0) energy[s] = sum;
    }
}
