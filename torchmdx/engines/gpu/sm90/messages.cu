// Messages between neighbours and their gradient: see row_messages.py.
#include "quads.cuh"

// Of a variant: SORTED, 32 edges by their intervals; WIDTH, channels of a lane, 4 or 2: a row is a warp or two; CHUNKED,
// 0: a block is WARPS warps of rows, else blocks have equal shares of all edges, whose rows their warps take one after the
// other (1) or side by side (2).
enum { ROW_WARPS = C / (32 * WIDTH), VECTORS = C / WIDTH };

// [] in the comments are shapes; N atoms, E edges.
struct RowParams {
    const void *charge;
    const long long *system;
    const float *y, *all;                   // [N,9,C] Y of the rows; what neighbours send: Y, or the gradient in M
    float *m, *p;                           // [N,9,C] M, null if it is not kept, or the gradient in it; P̂
    float *gradient;                        // [N,9,C] in Y, added to
    float *pull;                            // [warps of a row,E] ∂E/∂t
    const void *table;                      // [intervals,5,3,C] words
    const float *own;                       // [3,C]
    const int *row_ptr, *source, *knot;     // of edges
    const float4 *place;                    // [E]
    const int *count, *received;            // of a domain: how many rows are evaluated, and how many received messages
    int num_atoms, first_atom, window;      // window: 0, or for how many atoms `all` has room, in which they take turns
    int first, wide_charge, slots;          // first: `pull` is written, not added to; slots: E
};

#if WIDTH == 4
typedef float4 Numbers;
typedef uint4 Words;
DEV float one_of(const float4 &v, int c) { return c == 0 ? v.x : c == 1 ? v.y : c == 2 ? v.z : v.w; }
DEV unsigned one_of(const uint4 &v, int c) { return c == 0 ? v.x : c == 1 ? v.y : c == 2 ? v.z : v.w; }
DEV float4 together(const float (&x)[4]) { return make_float4(x[0], x[1], x[2], x[3]); }
#else
typedef float2 Numbers;
typedef uint2 Words;
DEV float one_of(const float2 &v, int c) { return c == 0 ? v.x : v.y; }
DEV unsigned one_of(const uint2 &v, int c) { return c == 0 ? v.x : v.y; }
DEV float2 together(const float (&x)[2]) { return make_float2(x[0], x[1]); }
#endif

// What a lane has of an atom.
struct Share {
    N9 of[WIDTH];
};
// Where a warp is: a row, and the vector of each lane in a component.
struct Here {
    int row, share, lane, column;
};
DEV Share read_share(const float *from, const Here &at)
{
    Share x;
    const Numbers *const first = (const Numbers *)from + (long long)at.row * (9 * VECTORS) + at.column;
#pragma unroll
    for (int k = 0; k < 9; k++) {
        const Numbers v = first[k * VECTORS];
#pragma unroll
        for (int c = 0; c < WIDTH; c++) x.of[c].v[k] = one_of(v, c);
    }
    return x;
}
DEV void write_share(float *to, const Here &at, const Share &x)
{
    Numbers *const first = (Numbers *)to + (long long)at.row * (9 * VECTORS) + at.column;
#pragma unroll
    for (int k = 0; k < 9; k++) {
        float v[WIDTH];
#pragma unroll
        for (int c = 0; c < WIDTH; c++) v[c] = x.of[c].v[k];
        first[k * VECTORS] = together(v);
    }
}
// sum + f(0) x.
DEV Share add_own(const Share &sum, const Share &x, const RowParams &p, const Here &at)
{
    Share made;
    const Numbers *const first = (const Numbers *)p.own + at.column;
    const Numbers f0 = first[0], f1 = first[VECTORS], f2 = first[2 * VECTORS];
#pragma unroll
    for (int c = 0; c < WIDTH; c++)
        made.of[c] = add9(sum.of[c], scale_parts(x.of[c], one_of(f0, c), one_of(f1, c), one_of(f2, c)));
    return made;
}

// The words of one part of an interval.
struct PartWords {
    Words of[5];
};
DEV PartWords read_part(const RowParams &p, int knot, int part, int column)
{
    PartWords w;
    const Words *const at = (const Words *)p.table + (long long)knot * (15 * VECTORS) + part * VECTORS + column;
#pragma unroll
    for (int q = 0; q < 5; q++) w.of[q] = __ldg(at + q * (3 * VECTORS));
    return w;
}
// The filter of channel c at t, and its slope. The last word holds two coefficients: see `dense_table`.
DEV float filter(const PartWords &w, int c, float t, float &slope)
{
    const unsigned last = one_of(w.of[4], c);
    slope = __uint_as_float(last << LEADING);
    float f = slope * t + __uint_as_float(last);
#pragma unroll
    for (int q = 3; q >= 0; q--) {
        slope = slope * t + f;
        f = f * t + __uint_as_float(one_of(w.of[q], c));
    }
    return f;
}
// The components of a part are FIRST to FIRST + COUNT - 1.
template <int PART> struct Part {
    enum { FIRST = PART == 0 ? 0 : PART == 1 ? 1 : 4, COUNT = PART == 0 ? 1 : PART == 1 ? 3 : 5 };
};
// The words of an interval: kept in registers until another interval comes, or read where they are used.
template <bool KEEP> struct Filters {
    PartWords kept[3];
    int knot = -1;

    MEMBER void at(const RowParams &p, int interval, int column)
    {
        if (KEEP && interval != knot) {
            knot = interval;
#pragma unroll
            for (int part = 0; part < 3; part++) kept[part] = read_part(p, interval, part, column);
        }
    }
    template <int PART> MEMBER PartWords words(const RowParams &p, int interval, int column) const
    {
        if (KEEP) return kept[PART];
        return read_part(p, interval, PART, column);
    }
};

// Edges with one interval: their places in it, where the tensors of their sources are, and which lanes have them.
template <int N> struct Edges {
    float t[N];
    int place[N], lane[N];
};
// Components of a source's tensor.
template <int COUNT> DEV void read_components(const RowParams &p, int place, int first, int column, float (&x)[COUNT][WIDTH])
{
    const Numbers *const at = (const Numbers *)p.all + ((long long)place * 9 + first) * VECTORS + column;
#pragma unroll
    for (int k = 0; k < COUNT; k++) {
        const Numbers v = __ldg(at + k * VECTORS);
#pragma unroll
        for (int c = 0; c < WIDTH; c++) x[k][c] = one_of(v, c);
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
    if (!SORTED) return key;
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
// after the other, one at a time or, if MOST is 2, two with the same interval. Then runs `after` on the 32, an edge a lane.
template <int MOST, class User> DEV void walk(const RowParams &p, const Here &at, int sources, User &user)
{
    const int end = p.row_ptr[at.row + 1];
#pragma unroll 1
    for (int first = p.row_ptr[at.row]; first < end; first += 32) {
        const int edge = first + at.lane;
        int knot = -1, place = 0;
        float t = 0;
        if (edge < end) {
            const int source = p.source[edge];
            if (source < sources) knot = p.knot[edge];
            place = place_of(p, source), t = p.place[edge].w;
        }
        const int order = in_order(knot, at.lane);
        unsigned left = ballot(knot >= 0);
        const int count = __popc(left);
#pragma unroll 1
        for (int k = 0; k < count; k++) {
            const int from = SORTED ? k : __ffs(left) - 1;
            left &= left - 1;
            const int key = from_lane(order, from), a = key % 32, interval = key / 32;
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

#ifdef EMULATED
DEV int *block_rows() { return (int *)shared_base(); }
DEV int take(int *next) { return (*next)++; }
#else
__shared__ int shared_rows[3];
DEV int *block_rows() { return shared_rows; }
DEV int take(int *next) { return atomicAdd(next, 1); }
#endif

enum { ROW_COST = 6 }; // of a row without edges, in edges
// The first of `count` rows before which there is so much work, which a warp looks for.
DEV int row_at(const RowParams &p, int count, long long work, int lane)
{
    int low = 0, high = count;
#pragma unroll 1
    while (low < high) {
        const int apart = (high - low + 31) / 32, row = low + apart * lane;
        const int before = __popc(ballot(row < high && p.row_ptr[row] + (long long)ROW_COST * row < work));
        if (before == 0) break;
        high = min(high, low + apart * before);
        low = low + apart * (before - 1) + 1;
    }
    return low;
}

// Runs `use` on all rows of a kernel whose blocks have so many warps.
template <int NUM_WARPS, class User> DEV void each_row(const RowParams &p, User use)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, count = count_of(p, p.count);
    const int share = warp % ROW_WARPS, column = share * 32 + lane;
    enum { ROWS = NUM_WARPS / ROW_WARPS };
    if (CHUNKED == 0) {
        const int row = blockIdx.x * ROWS + warp / ROW_WARPS;
        if (row < count) use(Here{row, share, lane, column});
        return;
    }
    int *const rows = block_rows();
    if (warp < 2) {
        const long long all = p.row_ptr[count] + (long long)ROW_COST * count;
        const int bound = row_at(p, count, all * (blockIdx.x + warp) / gridDim.x, lane);
        if (lane == 0) {
            rows[warp] = blockIdx.x + warp == gridDim.x ? count : bound;
            if (warp == 0) rows[2] = 0;
        }
    }
    __syncthreads();
    const int begin = rows[0], end = rows[1];
    if (CHUNKED == 2) {
#pragma unroll 1
        for (int first = begin; first < end; first += ROWS) {
            const int row = first + warp / ROW_WARPS;
            if (row < end) use(Here{row, share, lane, column});
            __syncthreads();
        }
        return;
    }
#pragma unroll 1
    while (true) {
        int next = 0;
        if (lane == 0) next = take(rows + 2);
        next = from_lane(next, 0);
        const int row = begin + next / ROW_WARPS, part = next % ROW_WARPS;
        if (row >= end) return;
        use(Here{row, part, lane, part * 32 + lane});
    }
}

// The sums of a row's messages.
struct Sums {
    const RowParams &p;
    const Here at;
    Share m{};
    Filters<SORTED> filters{};

    template <int PART, int N> MEMBER void add(int interval, const Edges<N> &edges)
    {
        enum { FIRST = Part<PART>::FIRST, COUNT = Part<PART>::COUNT };
        float y[N][COUNT][WIDTH];
#pragma unroll
        for (int n = 0; n < N; n++) read_components(p, edges.place[n], FIRST, at.column, y[n]);
        const PartWords w = filters.template words<PART>(p, interval, at.column);
#pragma unroll
        for (int c = 0; c < WIDTH; c++)
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
        filters.at(p, interval, at.column);
        add<0>(interval, edges), add<1>(interval, edges), add<2>(interval, edges);
    }
    MEMBER void after(int, bool) {}
};

// The gradient in Y of a row, and in the places of its edges.
struct GradientSums {
    const RowParams &p;
    const Here at;
    const bool received; // whether the row received messages
    const Share y;
    Share sum{};
    float mine = 0; // of the edge of this lane
    Filters<SORTED && WIDTH == 2> filters{};

    template <int PART, int N> MEMBER void add(int interval, const Edges<N> &edges, float (&pull)[N])
    {
        enum { FIRST = Part<PART>::FIRST, COUNT = Part<PART>::COUNT };
        float g[N][COUNT][WIDTH];
#pragma unroll
        for (int n = 0; n < N; n++) read_components(p, edges.place[n], FIRST, at.column, g[n]);
        const PartWords w = filters.template words<PART>(p, interval, at.column);
#pragma unroll
        for (int c = 0; c < WIDTH; c++)
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
        filters.at(p, interval, at.column);
        add<0>(interval, edges, pull), add<1>(interval, edges, pull), add<2>(interval, edges, pull);
#pragma unroll
        for (int n = 0; n < N; n++) {
            pull[n] = sum_of_warp(pull[n]);
            if (at.lane == edges.lane[n]) mine = pull[n];
        }
    }
    MEMBER void after(int edge, bool exists)
    {
        float *const pull = p.pull + (long long)at.share * p.slots + edge;
        if (exists) *pull = p.first || !received ? mine : *pull + mine;
        mine = 0;
    }
};

// M_i = Σ_j f(r_ij) Y_j + f(0) Y_i, and its product with Y_i, normalised.
DEV void messages(const RowParams &p)
{
    each_row<WARPS>(p, [&](const Here &at) {
        Sums sums{p, at};
        walk<1>(p, at, 0x7fffffff, sums);
        const Share y = read_share(p.y, at);
        Share m = add_own(sums.m, y, p, at);
        if (p.m) write_share(p.m, at, m);
        const float factor = charge_factor(p, Spot{at.row, 0, at.lane});
#pragma unroll
        for (int c = 0; c < WIDTH; c++) {
            const N9 made = message_product(y.of[c], m.of[c], factor);
            m.of[c] = scale9(made, reciprocal(squared_norm(made) + 1.0f));
        }
        write_share(p.p, at, m);
    });
}

// Adds Σ_j f(r_ij) GM_j + f(0) GM_i to the gradient in Y_i, and Σ_c f'(t) (Y_i · GM_j) to `pull`: the list is symmetric.
DEV void messages_gradient(const RowParams &p)
{
    const int sources = p.received ? __ldg(p.received) : 0x7fffffff;
    each_row<GRADIENT_WARPS>(p, [&](const Here &at) {
        const bool received = at.row < sources;
        GradientSums sums{p, at, received, read_share(p.y, at)};
        walk<SORTED && WIDTH == 4 ? 2 : 1>(p, at, sources, sums);
        Share sum = sums.sum;
        // The gradients of rows that received no messages are zero, and nowhere in memory.
        if (received) {
            const Share before = read_share(p.gradient, at);
            sum = add_own(sum, read_share(p.m, at), p, at);
#pragma unroll
            for (int c = 0; c < WIDTH; c++) sum.of[c] = add9(before.of[c], sum.of[c]);
        }
        write_share(p.gradient, at, sum);
    });
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
