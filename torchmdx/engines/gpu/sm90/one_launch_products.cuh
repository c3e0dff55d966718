// Products with weights, and exchanges of their results.
#pragma once
#include "one_launch_block.cuh"

template <int COUNT> DEV void fetch(float (&w)[COUNT], const float *block_weights, int at)
{
#pragma unroll
    for (int j = 0; j < COUNT / 4; j++) {
        float4 v = weights4((const float4 *)block_weights + (at / 4 + j) * THREADS + threadIdx.x);
        w[4 * j] = v.x, w[4 * j + 1] = v.y, w[4 * j + 2] = v.z, w[4 * j + 3] = v.w;
    }
}

// Adds the halves of a warp: pairs (u, v) of two rows; returns what this half keeps, u in the first and v in the
// second.
DEV float halves(float u, float v, int half) { return (half ? v : u) + exchange(half ? u : v, 16); }

// Numbers as sums of two that tensor cores take, of 11 bits each.
template <int COUNT> struct Split {
    float big[COUNT], small[COUNT];
    MEMBER Split(const float (&x)[COUNT])
    {
#pragma unroll
        for (int k = 0; k < COUNT; k++) big[k] = rounded_tf32(x[k]), small[k] = x[k] - big[k];
    }
};

// The rows of products of nine: s, the three of v, the five of q of each atom; eight of a part at a time.
#ifdef ATOMS_PER_CLUSTER
enum { MOST_IN_CHUNK = CHUNK };
#else
enum { MOST_IN_CHUNK = 4 };
#endif
enum {
    EIGHTS_S = (MOST_IN_CHUNK + 7) / 8,
    EIGHTS_V = (3 * MOST_IN_CHUNK + 7) / 8,
    EIGHTS_Q = (5 * MOST_IN_CHUNK + 7) / 8,
    EIGHTS = EIGHTS_S + EIGHTS_V + EIGHTS_Q
};
struct Eight {
    unsigned part, first; // row of the part
};
DEV Eight eight(int k)
{
    return k < EIGHTS_S              ? Eight{0, 8u * k}
           : k < EIGHTS_S + EIGHTS_V ? Eight{1, 8u * (k - EIGHTS_S)}
                                     : Eight{2, 8u * (k - EIGHTS_S - EIGHTS_V)};
}
// Where a row begins in [count][9][WIDE].
DEV unsigned row_at(unsigned part, unsigned r, unsigned count)
{
    return r % count * NINE + (part * part + r / count) * WIDE;
}

// result [atoms][9][WIDE] = x [SHARES][atoms][9][WIDE] times one matrix per part; x and result in shared memory. `all`:
// atoms that there is room for in x. x_at, result_at, scratch_at: floats from the start of shared memory.
// Each warp takes 8 inner channels.
APART void multiply9(float4 w0, float4 w1, float4 w2, int x_at, int result_at, int scratch_at, int atoms, int chunk,
                     int all)
{
#ifdef ATOMS_PER_CLUSTER
    atoms = all = ATOMS_PER_CLUSTER, chunk = CHUNK;
#endif
    const unsigned tid = threadIdx.x, warp = tid / 32, i = tid % 32 / 4, j = tid % 4;
    const float *x = shared_base() + x_at + warp / 2 * all * NINE + 8 * (warp % 2) + 2 * j;
    float *result = shared_base() + result_at, *scratch = shared_base() + scratch_at;
    const Split<4> weights[3] = {{{w0.x, w0.y, w0.z, w0.w}}, {{w1.x, w1.y, w1.z, w1.w}}, {{w2.x, w2.y, w2.z, w2.w}}};
#pragma unroll 1
    for (int from = 0; from < atoms; from += chunk) {
        const unsigned count = SPECIAL ? chunk : min(chunk, atoms - from);
        float2 rows[EIGHTS];
        float sums[EIGHTS][4] = {}; // of rows j and j + 4, columns i and i + 8
#pragma unroll
        for (int k = 0; k < EIGHTS; k++) {
            const Eight e = eight(k);
            const unsigned r = min(e.first + i / 2 + i % 2 * 4, (2 * e.part + 1) * count - 1);
            rows[k] = *(const float2 *)(x + from * NINE + row_at(e.part, r, count));
        }
#pragma unroll
        for (int k = 0; k < EIGHTS; k++) {
            const Split<4> &w = weights[eight(k).part];
            const Split<2> row({rows[k].x, rows[k].y});
            multiply_add(sums[k], w.small, row.big);
            multiply_add(sums[k], w.big, row.small);
            multiply_add(sums[k], w.big, row.big);
        }
        // Half of the threads begin with the other column: no two of a warp in the same bank.
        const unsigned other = j / 2;
        float *to = scratch + warp * count * NINE + i + 8 * other;
        const int step = 8 - 16 * (int)other;
#pragma unroll
        for (int k = 0; k < EIGHTS; k++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const Eight e = eight(k);
                const unsigned r = e.first + j + 4 * h, at = row_at(e.part, r, count);
                const float low = sums[k][h], high = sums[k][h + 2];
                if (r < (2 * e.part + 1) * count) to[at] = other ? high : low, to[at + step] = other ? low : high;
            }
        __syncthreads();
#pragma unroll 1
        for (unsigned o = tid; o < count * NINE; o += THREADS) {
            float even = 0, odd = 0;
#pragma unroll
            for (int u = 0; u < WARPS; u += 2)
                even += scratch[u * count * NINE + o], odd += scratch[(u + 1) * count * NINE + o];
            result[from * NINE + o] = even + odd;
        }
        __syncthreads();
    }
}

DEV void product9(const Block &b, const float (&w)[12], const float *x, float *result)
{
    multiply9(make_float4(w[0], w[1], w[2], w[3]), make_float4(w[4], w[5], w[6], w[7]),
              make_float4(w[8], w[9], w[10], w[11]), (int)(x - shared_base()), (int)(result - shared_base()),
              (int)(b.scratch - shared_base()), rows_of(b.p, b.atoms), chunk_of(b.p), per_cluster(b.p));
}

// x [atoms][K] times a matrix; x in shared memory, `stride` floats an atom. put: takes the results [atoms][G][16], by
// number, each from one thread. A barrier must follow. APART_BY: floats between what is multiplied by one group and the next.
template <int K, int G, int APART_BY = 0, class Put>
DEV void product1(const Block &b, const float (&w)[K * G * 16 / THREADS], const float *x, int stride, Put put)
{
    enum { KK = K / SPLITS < 4 ? K / SPLITS : 4, Q = K / SPLITS / KK };
    const int half = b.lane >> 4, share = b.warp;
    x += KK * (2 * share + half);
#pragma unroll 1
    for (int from = 0, rows = rows_of(b.p, b.atoms); from < rows; from += chunk_of(b.p)) {
        const int count = SPECIAL ? chunk_of(b.p) : min(chunk_of(b.p), rows - from);
        EACH_ROW for (int a = 0; a < count; a++)
        {
            float acc[G];
#pragma unroll
            for (int g = 0; g < G; g++) acc[g] = 0;
#pragma unroll
            for (int q = 0; q < Q; q++) {
                const float *row = x + (from + a) * stride + q * SPLITS * KK;
                float v[KK];
#pragma unroll
                for (int g = 0; g < G; g++) {
                    if (g == 0 || APART_BY) {
                        if (KK == 4) {
                            const float4 four = *(const float4 *)(row + g * APART_BY);
                            v[0] = four.x, v[1] = four.y, v[KK - 2] = four.z, v[KK - 1] = four.w;
                        } else {
                            const float2 two = *(const float2 *)(row + g * APART_BY);
                            v[0] = two.x, v[1] = two.y;
                        }
                    }
#pragma unroll
                    for (int u = 0; u < KK; u++) acc[g] += v[u] * w[(q * G + g) * KK + u];
                }
            }
            float *to = b.scratch + (share * count + a) * (G * 16) + b.col;
#pragma unroll
            for (int g = 0; g + 1 < G; g += 2) to[(g + half) * 16] = halves(acc[g], acc[g + 1], half);
            if (G % 2) {
                float last = acc[G - 1] + exchange(acc[G - 1], 16);
                if (!half) to[(G - 1) * 16] = last;
            }
        }
        __syncthreads();
#pragma unroll 1
        for (int o = b.tid; o < count * G * 16; o += THREADS) {
            float even = 0, odd = 0;
#pragma unroll
            for (int u = 0; u < WARPS; u += 2)
                even += b.scratch[u * count * G * 16 + o], odd += b.scratch[(u + 1) * count * G * 16 + o];
            put(from * G * 16 + o, even + odd);
        }
        if (IN_CHUNKS) __syncthreads();
    }
}

// Copies ROWS rows of WIDTH numbers an atom from `stage` to every block of the cluster: to[row * stride + rank * WIDTH].
template <int WIDTH, int ROWS> DEV void push(const Block &b, const float *stage, float *to, int stride, int turn)
{
    enum { QUADS_A_ROW = WIDTH / 4, STEP = WARPS / SHARES * 32 };
    const int count = ROWS * b.atoms * QUADS_A_ROW, most = ROWS * rows_of(b.p, b.atoms) * QUADS_A_ROW;
    const int start = b.warp / SHARES * 32 + b.lane;
    to += b.rank * WIDTH;
    EACH_ROW for (int from = 0; from < most; from += STEP)
    {
        const int j = from + start, row = j / QUADS_A_ROW, quad = j % QUADS_A_ROW;
        if (j < count) push4(b.remote, to + row * stride + 4 * quad, *(const float4 *)(stage + 4 * j), turn);
    }
}

// Copies `count` floats at `stage` to the place that `to` is of this block's memory, in every block of the cluster: warp 0
// to this block, others to those that their `remote` is. The first copies quads: compute-sanitizer takes a bulk copy from
// a block to itself for an error.
DEV void push_copies(const Remote &r, int warp, int lane, const float *to, const float *stage, int count, int turn)
{
    if (warp == 0)
#pragma unroll 1
        for (int k = lane; k < count / 4; k += 32) push4(r, to + 4 * k, *(const float4 *)(stage + 4 * k), turn);
    else if (warp < SHARES && lane == 0)
        push_all(r, to, stage, 4 * count, turn);
}

// Copies the nine components of this block's channels to every block of the cluster: to [SHARES][atoms][9][WIDE].
// Each by a warp of its own: a warp starts its copies one after the other.
DEV void push_nines(const Block &b, const float *stage, const float *to, int turn)
{
    push_copies(b.remote, b.warp, b.lane, to + b.rank * per_cluster(b.p) * NINE, stage, b.atoms * NINE, turn);
}

// What blocks of other clusters compute they tell in 16 bytes each, the last four of which are the number of the launch.
DEV float4 told(const Block &b, float x, float y, float z)
{
    return make_float4(x, y, z, __uint_as_float(b.launch));
}
DEV bool is_told(const Block &b, const float4 &v) { return __float_as_uint(v.w) == b.launch; }

DEV float4 *energies_told(const Block &b) { return b.p.told_energies + b.launch % 2 * b.p.num_atoms; }
DEV float4 *forces_told(const Block &b) { return b.p.told_forces + b.launch % 2 * b.p.num_atoms; }
DEV float4 *virials_told(const Block &b) { return b.p.told_virials + b.launch % 2 * 2 * b.p.num_atoms; }
DEV double energy_of(const float4 &v) { return __hiloint2double(__float_as_int(v.y), __float_as_int(v.x)); }

// What has been told; 0 for no address. After `patience` looks in vain NaN, because those that should tell it were not
// started: all blocks end, and the results are not finite.
template <int COUNT> DEV void hear(const Block &b, const float4 *const (&from)[COUNT], float4 (&heard)[COUNT])
{
    unsigned looks = b.p.patience;
    bool all;
    do {
        all = true;
#pragma unroll
        for (int k = 0; k < COUNT; k++) heard[k] = from[k] ? look(from[k]) : told(b, 0, 0, 0);
#pragma unroll
        for (int k = 0; k < COUNT; k++) all = all && is_told(b, heard[k]);
#ifdef EMULATED
        for (int k = 0; k < COUNT && looks; k++)
            if (from[k]) pause(from[k], b.launch);
#endif
    } while (!all && looks-- > 0 && (looks % 4096 || !__ldcg(b.p.counters + 1)));
    if (all) return;
    b.p.counters[1] = 1;
    const float none = __uint_as_float(0x7fc00000);
#pragma unroll
    for (int k = 0; k < COUNT; k++)
        if (!is_told(b, heard[k])) heard[k] = make_float4(none, none, none, 0);
}

// Nine components of a channel, as three times three that are told; [..][3][C].
DEV void tell_nine(const Block &b, float4 *to, const N9 &x)
{
#pragma unroll
    for (int k = 0; k < 3; k++) tell(to + k * C, told(b, x.v[3 * k], x.v[3 * k + 1], x.v[3 * k + 2]));
}
template <int COUNT> DEV void hear_nine(const Block &b, const float4 *const (&from)[COUNT], N9 (&x)[COUNT])
{
    const float4 *parts[3 * COUNT];
    float4 v[3 * COUNT];
#pragma unroll
    for (int k = 0; k < 3 * COUNT; k++) parts[k] = from[k / 3] ? from[k / 3] + k % 3 * C : 0;
    hear(b, parts, v);
#pragma unroll
    for (int k = 0; k < 3 * COUNT; k++)
        x[k / 3].v[k % 3 * 3] = v[k].x, x[k / 3].v[k % 3 * 3 + 1] = v[k].y, x[k / 3].v[k % 3 * 3 + 2] = v[k].z;
}
// What all atoms have told of a layer and the block's channels, to shared memory.
DEV void hear_all(const Block &b, const float4 *nines, int layer)
{
    enum { AT_ONCE = 3 };
    const int count = b.p.num_atoms * 3 * WIDE;
    const float4 *all = nines + (long long)layer * b.p.num_atoms * 3 * C + b.rank * WIDE;
#pragma unroll 1
    for (int base = b.tid; base < count; base += AT_ONCE * THREADS) {
        const float4 *from[AT_ONCE];
        float4 heard[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            const int o = base + k * THREADS;
            from[k] = o < count ? all + o / WIDE * C + o % WIDE : 0;
        }
        hear(b, from, heard);
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++)
            if (from[k]) b.heard[base + k * THREADS] = heard[k];
    }
    __syncthreads();
}
DEV N9 heard_of(const Block &b, int atom)
{
    N9 x;
#pragma unroll
    for (int k = 0; k < 3; k++) {
        const float4 v = b.heard[(3 * atom + k) * WIDE + b.col];
        x.v[3 * k] = v.x, x.v[3 * k + 1] = v.y, x.v[3 * k + 2] = v.z;
    }
    return x;
}

// The slot of the edge opposite to e in a list, on all lanes of a warp; -1 if there is none.
template <class List> DEV int opposite(const List &p, int lane, int e)
{
    const int i = p.target[e], j = p.source[e], from = p.row_ptr[j], to = p.row_ptr[j + 1];
    const int sa = -p.shifts[3LL * e], sb = -p.shifts[3LL * e + 1], sc = -p.shifts[3LL * e + 2];
    int found = -1;
#pragma unroll 1
    for (int k = from + lane; k < to; k += 32) {
        const bool same =
            p.source[k] == i & p.shifts[3LL * k] == sa & p.shifts[3LL * k + 1] == sb & p.shifts[3LL * k + 2] == sc;
        found = same ? k : found;
    }
#pragma unroll
    for (int mask = 16; mask; mask >>= 1) found = max(found, exchange(found, mask));
    return found;
}
