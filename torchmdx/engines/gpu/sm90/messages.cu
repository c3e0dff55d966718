// Messages between neighbours and their gradient, a row a warp: see row_messages.py.
#include "quads.cuh"

// [] in the comments are shapes; N atoms, E edges.
struct RowParams {
    const void *charge;
    const long long *system;
    const float *y, *all;                   // [N,9,C] Y of the rows; what neighbours send: Y, or the gradient in M
    float *m, *p;                           // [N,9,C] M, null if it is not kept, or the gradient in it; P̂
    float *gradient;                        // [N,9,C] in Y, added to
    float *pull;                            // [E] ∂E/∂t
    const uint4 *table;                     // [intervals,5,3,C] words
    const float *own;                       // [3,C]
    const int *row_ptr, *source, *knot;     // of edges
    const float4 *place;                    // [E]
    const int *count, *received;            // of a domain: how many rows are evaluated, and how many received messages
    int num_atoms, first_atom, window;      // window: 0, or for how many atoms `all` has room, in which they take turns
    int first, wide_charge;                 // first: `pull` is written, not added to
};

// The four channels' words of one part of an interval.
struct PartWords {
    uint4 of[5];
};
DEV unsigned word_of(const uint4 &v, int c) { return c == 0 ? v.x : c == 1 ? v.y : c == 2 ? v.z : v.w; }
DEV PartWords read_part(const RowParams &p, int knot, int part, int lane)
{
    PartWords w;
    const uint4 *const at = p.table + (long long)knot * (15 * C / 4) + part * (C / 4) + lane;
#pragma unroll
    for (int q = 0; q < 5; q++) w.of[q] = __ldg(at + q * (3 * C / 4));
    return w;
}
// The filter of channel c at t, and its slope. The last word holds two coefficients: see `dense_table`.
DEV float filter(const PartWords &w, int c, float t, float &slope)
{
    const unsigned last = word_of(w.of[4], c);
    slope = __uint_as_float(last << LEADING);
    float f = slope * t + __uint_as_float(last);
#pragma unroll
    for (int q = 3; q >= 0; q--) {
        slope = slope * t + f;
        f = f * t + __uint_as_float(word_of(w.of[q], c));
    }
    return f;
}
// The components of a part are FIRST to FIRST + COUNT - 1.
template <int PART> struct Part {
    enum { FIRST = PART == 0 ? 0 : PART == 1 ? 1 : 4, COUNT = PART == 0 ? 1 : PART == 1 ? 3 : 5 };
};

// Edges with one interval: their places in it, where the tensors of their sources are, and which lanes have them.
template <int N> struct Edges {
    float t[N];
    int place[N], lane[N];
};
// Components of a source's tensor.
template <int COUNT> DEV void read_components(const RowParams &p, int place, int first, int lane, float (&x)[COUNT][4])
{
    const float4 *const at = (const float4 *)p.all + ((long long)place * 9 + first) * (C / 4) + lane;
#pragma unroll
    for (int k = 0; k < COUNT; k++) {
        const float4 v = __ldg(at + k * (C / 4));
        x[k][0] = v.x, x[k][1] = v.y, x[k][2] = v.z, x[k][3] = v.w;
    }
}
// Where an atom's tensors are.
DEV int place_of(const RowParams &p, int atom)
{
    atom -= p.first_atom;
    return p.window && atom >= p.window ? atom - p.window : atom;
}

// The lanes of a warp in the order of their intervals, those without one last: interval * 32 + lane.
DEV int in_order(int knot, int lane)
{
    int key = (knot < 0 ? 0x3ffffff : knot) << 5 | lane;
#pragma unroll
    for (int size = 2; size <= 32; size *= 2)
#pragma unroll
        for (int apart = size / 2; apart; apart /= 2) {
            const int other = exchange(key, apart);
            key = ((lane & apart) == 0) == ((lane & size) == 0) ? min(key, other) : max(key, other);
        }
    return key;
}

// Runs `use` on the edges of a row within the cutoff whose sources are before `sources`, with their interval: 32 edges
// after the other, in the order of their intervals, one at a time or, if MOST is 2, two with the same interval. Then
// runs `after` on the 32, an edge a lane.
template <int MOST, class User> DEV void walk(const RowParams &p, int row, int sources, int lane, User &user)
{
    const int end = p.row_ptr[row + 1];
#pragma unroll 1
    for (int first = p.row_ptr[row]; first < end; first += 32) {
        const int edge = first + lane;
        int knot = -1, place = 0;
        float t = 0;
        if (edge < end) {
            const int source = p.source[edge];
            if (source < sources) knot = p.knot[edge];
            place = place_of(p, source), t = p.place[edge].w;
        }
        const int order = in_order(knot, lane), count = __popc(ballot(knot >= 0));
#pragma unroll 1
        for (int k = 0; k < count; k++) {
            const int key = from_lane(order, k), a = key % 32, interval = key / 32;
            const float ta = from_lane(t, a);
            const int pa = from_lane(place, a);
            if (MOST == 2 && k + 1 < count) {
                const int other = from_lane(order, k + 1), b = other % 32;
                if (other / 32 == interval) {
                    user.use(interval, Edges<2>{{ta, from_lane(t, b)}, {pa, from_lane(place, b)}, {a, b}});
                    k++;
                    continue;
                }
            }
            user.use(interval, Edges<1>{{ta}, {pa}, {a}});
        }
        user.after(edge, edge < end);
    }
}

DEV int row_of_warp() { return blockIdx.x * WARPS + threadIdx.x / 32; }

// The sums of a row's messages, and the words of the table that stay in registers.
struct Sums {
    const RowParams &p;
    const int lane;
    Quad m{};
    PartWords kept[3];
    int knot = -1;

    template <int PART, int N> MEMBER void add(const Edges<N> &edges)
    {
        enum { FIRST = Part<PART>::FIRST, COUNT = Part<PART>::COUNT };
        float y[N][COUNT][4];
#pragma unroll
        for (int n = 0; n < N; n++) read_components(p, edges.place[n], FIRST, lane, y[n]);
        const PartWords &w = kept[PART];
#pragma unroll
        for (int c = 0; c < 4; c++)
#pragma unroll
            for (int n = 0; n < N; n++) {
                float slope;
                const float f = filter(w, c, edges.t[n], slope);
#pragma unroll
                for (int k = 0; k < COUNT; k++) m.of[c].v[FIRST + k] += f * y[n][k][c];
            }
    }
    template <int N> MEMBER void use(int interval, const Edges<N> &edges)
    {
        if (interval != knot) {
            knot = interval;
#pragma unroll
            for (int part = 0; part < 3; part++) kept[part] = read_part(p, interval, part, lane);
        }
        add<0>(edges), add<1>(edges), add<2>(edges);
    }
    MEMBER void after(int, bool) {}
};

// The gradient in Y of a row, and in the places of its edges.
struct GradientSums {
    const RowParams &p;
    const int lane;
    const bool received; // whether the row received messages
    const Quad y;
    Quad sum{};
    float mine = 0; // of the edge of this lane

    template <int PART, int N> MEMBER void add(int interval, const Edges<N> &edges, float (&pull)[N])
    {
        enum { FIRST = Part<PART>::FIRST, COUNT = Part<PART>::COUNT };
        float g[N][COUNT][4];
#pragma unroll
        for (int n = 0; n < N; n++) read_components(p, edges.place[n], FIRST, lane, g[n]);
        const PartWords w = read_part(p, interval, PART, lane);
#pragma unroll
        for (int c = 0; c < 4; c++)
#pragma unroll
            for (int n = 0; n < N; n++) {
                float slope, along = 0;
                const float f = filter(w, c, edges.t[n], slope);
#pragma unroll
                for (int k = 0; k < COUNT; k++) {
                    sum.of[c].v[FIRST + k] += f * g[n][k][c];
                    along += y.of[c].v[FIRST + k] * g[n][k][c];
                }
                pull[n] += slope * along;
            }
    }
    template <int N> MEMBER void use(int interval, const Edges<N> &edges)
    {
        float pull[N] = {};
        add<0>(interval, edges, pull), add<1>(interval, edges, pull), add<2>(interval, edges, pull);
#pragma unroll
        for (int n = 0; n < N; n++) {
            pull[n] = sum_of_warp(pull[n]);
            if (lane == edges.lane[n]) mine = pull[n];
        }
    }
    MEMBER void after(int edge, bool exists)
    {
        if (exists) p.pull[edge] = p.first || !received ? mine : p.pull[edge] + mine;
        mine = 0;
    }
};

// M_i = Σ_j f(r_ij) Y_j + f(0) Y_i, and its product with Y_i, normalised.
DEV void messages(const RowParams &p)
{
    const int row = row_of_warp(), lane = threadIdx.x % 32;
    if (row >= count_of(p, p.count)) return;
    Sums sums{p, lane};
    walk<1>(p, row, 0x7fffffff, lane, sums);
    Quad &m = sums.m;
    const Spot at{row, 0, lane};
    float own[3][4];
    read_channels(own, p.own, {0, 0, lane});
    const Quad y = read_global(p.y, at);
    each_channel([&](int c) { m.of[c] = add9(m.of[c], scale_parts(y.of[c], own[0][c], own[1][c], own[2][c])); });
    if (p.m) write_global(p.m, at, m);
    const float factor = charge_factor(p, at);
    each_channel([&](int c) {
        const N9 made = message_product(y.of[c], m.of[c], factor);
        m.of[c] = scale9(made, reciprocal(squared_norm(made) + 1.0f));
    });
    write_global(p.p, at, m);
}

// Adds Σ_j f(r_ij) GM_j + f(0) GM_i to the gradient in Y_i, and Σ_c f'(t) (Y_i · GM_j) to `pull`: the list is symmetric.
DEV void messages_gradient(const RowParams &p)
{
    const int row = row_of_warp(), lane = threadIdx.x % 32;
    if (row >= count_of(p, p.count)) return;
    const int sources = p.received ? __ldg(p.received) : 0x7fffffff;
    const bool received = row < sources;
    const Spot at{row, 0, lane};
    GradientSums sums{p, lane, received, read_global(p.y, at)};
    walk<2>(p, row, sources, lane, sums);
    Quad &sum = sums.sum;
    float own[3][4];
    read_channels(own, p.own, {0, 0, lane});
    // The gradients of rows that received no messages are zero, and nowhere in memory.
    if (received) {
        const Quad before = read_global(p.gradient, at), g = read_global(p.m, at);
        each_channel([&](int c) {
            sum.of[c] = add9(before.of[c], add9(sum.of[c], scale_parts(g.of[c], own[0][c], own[1][c], own[2][c])));
        });
    }
    write_global(p.gradient, at, sum);
}

#ifndef EMULATED
#define KERNEL(name)                                                                                                   \
    extern "C" __global__ void __launch_bounds__(32 * WARPS, 1) name##_kernel(const __grid_constant__ RowParams p)       \
    {                                                                                                                  \
        name(p);                                                                                                       \
    }
KERNEL(messages)
KERNEL(messages_gradient)
#endif
