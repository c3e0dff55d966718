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
DEV constexpr int part_of(int component) { return component == 0 ? 0 : component < 4 ? 1 : 2; }

DEV Quad read_neighbor(const RowParams &p, int place, int lane)
{
    Quad x;
    const float4 *const at = (const float4 *)p.all + (long long)place * (9 * C / 4) + lane;
#pragma unroll
    for (int k = 0; k < 9; k++) set4(x, k, __ldg(at + k * (C / 4)));
    return x;
}
// Where an atom's tensors are.
DEV int place_of(const RowParams &p, int atom)
{
    atom -= p.first_atom;
    return p.window && atom >= p.window ? atom - p.window : atom;
}

// Runs `use` on the edges of a row within the cutoff whose sources are before `sources`: with the interval, the place in
// it, the source's tensor and the edge's place among 32; then `after` on the 32, an edge a lane.
template <class Use, class After>
DEV void walk(const RowParams &p, int row, int sources, int lane, Use use, After after)
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
#pragma unroll 1
        for (unsigned left = ballot(knot >= 0); left; left &= left - 1) {
            const int k = __ffs(left) - 1;
            use(from_lane(knot, k), from_lane(t, k), read_neighbor(p, from_lane(place, k), lane), k);
        }
        after(edge, edge < end);
    }
}

DEV int row_of_warp(int warps) { return blockIdx.x * warps + threadIdx.x / 32; }

// M_i = Σ_j f(r_ij) Y_j + f(0) Y_i, and its product with Y_i, normalised.
DEV void messages(const RowParams &p)
{
    const int row = row_of_warp(WARPS), lane = threadIdx.x % 32;
    if (row >= count_of(p, p.count)) return;
    Quad m{};
    walk(
        p, row, 0x7fffffff, lane,
        [&](int knot, float t, const Quad &y, int) {
#pragma unroll
            for (int part = 0; part < 3; part++) {
                const PartWords w = read_part(p, knot, part, lane);
                each_channel([&](int c) {
                    float slope;
                    const float f = filter(w, c, t, slope);
#pragma unroll
                    for (int k = 0; k < 9; k++)
                        if (part_of(k) == part) m.of[c].v[k] += f * y.of[c].v[k];
                });
            }
        },
        [](int, bool) {});
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
    const int row = row_of_warp(GRADIENT_WARPS), lane = threadIdx.x % 32;
    if (row >= count_of(p, p.count)) return;
    const int sources = p.received ? __ldg(p.received) : 0x7fffffff;
    const bool received = row < sources;
    const Spot at{row, 0, lane};
    const Quad y = read_global(p.y, at);
    Quad sum{};
    float mine = 0;
    walk(
        p, row, sources, lane,
        [&](int knot, float t, const Quad &g, int k) {
            float pull = 0;
#pragma unroll
            for (int part = 0; part < 3; part++) {
                const PartWords w = read_part(p, knot, part, lane);
                each_channel([&](int c) {
                    float slope, along = 0;
                    const float f = filter(w, c, t, slope);
#pragma unroll
                    for (int e = 0; e < 9; e++)
                        if (part_of(e) == part) {
                            sum.of[c].v[e] += f * g.of[c].v[e];
                            along += y.of[c].v[e] * g.of[c].v[e];
                        }
                    pull += slope * along;
                });
            }
            pull = sum_of_warp(pull);
            if (lane == k) mine = pull;
        },
        [&](int edge, bool exists) {
            if (exists) p.pull[edge] = p.first || !received ? mine : p.pull[edge] + mine;
            mine = 0;
        });
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
extern "C" __global__ void __launch_bounds__(32 * WARPS, BLOCKS) messages_kernel(const __grid_constant__ RowParams p)
{
    messages(p);
}
extern "C" __global__ void __launch_bounds__(32 * GRADIENT_WARPS, GRADIENT_BLOCKS)
    messages_gradient_kernel(const __grid_constant__ RowParams p)
{
    messages_gradient(p);
}
#endif
