// The network of every edge of a TensorNet2 of few atoms, and its gradient: as edge_mlp.py, in one kernel each way.
//
// A cluster of SHARES blocks takes ROWS rows, each block a share of the columns of every product. What a block makes of
// z2 it copies to the others. Weights are in registers, loaded before what they are multiplied with is known; products
// are those of tensor cores, three of TF32 numbers for one of float32, and each warp's part of an inner sum is added
// outside of them. Two more kernels are the gradient of messages, and of z1 in charges and distances.
#include "one_launch_products.cuh"

enum { K = 16, ROWS = 32 }; // sets of charges; rows of a cluster: atoms, then edges
enum { TWO = 2 * C, THREE = 3 * C, OF_TWO = TWO / SHARES, OF_THREE = THREE / SHARES };
// Floats between rows in shared memory: rows of a fragment are in different banks.
enum { WIDE_ROW = C + 4, NARROW_ROW = OF_TWO + 4, LONG_ROW = THREE + 4 };
// Groups of warps that share an inner sum.
enum { GROUPS = 8 };

// Floats per thread of each product's weights in the order in which they lie in memory.
enum { OF_MIDDLE = 0, OF_LAST = OF_MIDDLE + 8, OF_LAST_BACK = OF_LAST + 24, OF_MIDDLE_BACK = OF_LAST_BACK + 24 };
enum { MAP_WEIGHTS = OF_MIDDLE_BACK + 8 };

// N atoms, E edges. shares [2K,C] and shares_back [C,2K]: what the charges of target and source add to z1.
struct Maps {
    const int *row_ptr, *source, *target, *shifts, *knot;
    const float *place, *lengths, *table, *own, *proposed, *shares, *shares_back, *weights, *middle_bias, *last_bias;
    const float *y, *gm;
    const void *charge;
    float *z1, *z2, *z3;
    int *reverse;
    float *gy, *pull_parts, *pull, *gq; // pull_parts [SHARES,E]
    float least, slack, cutoff;
    int num_atoms, capacity, wide_charge, interval, adds, adds_pull; // interval: floats of one in the table
};

struct Rows {
    int tid, lane, warp, rank, first, total;
    bool any;
    Remote remote;
};
DEV Rows rows_here(const Maps &p)
{
    Rows b;
    b.tid = threadIdx.x, b.lane = b.tid % 32, b.warp = b.tid / 32, b.rank = block_rank();
    b.first = blockIdx.x / SHARES * ROWS, b.total = p.num_atoms + p.row_ptr[p.num_atoms], b.any = b.first < b.total;
    return b;
}

// sum [2][NT][4] += rows [ROWS][8 KS], `stride` apart, times the weights of this warp, in fragments of mma.sync.
template <int NT, int KS>
DEV void multiply_rows(const float *rows, int stride, const float (&w)[NT * KS * 2], float (&sum)[2][NT][4])
{
    const int lane = threadIdx.x % 32, i = lane / 4, j = lane % 4;
#pragma unroll
    for (int s = 0; s < KS; s++)
#pragma unroll
        for (int m = 0; m < 2; m++) {
            const float *at = rows + (16 * m + i) * stride + 8 * s + j;
            const Split<4> x({at[0], at[8 * stride], at[4], at[8 * stride + 4]});
#pragma unroll
            for (int n = 0; n < NT; n++) {
                const Split<2> y({w[(s * NT + n) * 2], w[(s * NT + n) * 2 + 1]});
                multiply_add(sum[m][n], x.small, y.big);
                multiply_add(sum[m][n], x.big, y.small);
                multiply_add(sum[m][n], x.big, y.big);
            }
        }
}
// A warp's part of an inner sum to `to` [ROWS][width], from its first column on.
template <int NT> DEV void put_part(float *to, int width, const float (&sum)[2][NT][4])
{
    const int lane = threadIdx.x % 32, i = lane / 4, j = lane % 4;
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int n = 0; n < NT; n++) {
            float *at = to + (16 * m + i) * width + 8 * n + 2 * j;
            *(float2 *)at = float2{sum[m][n][0], sum[m][n][1]};
            *(float2 *)(at + 8 * width) = float2{sum[m][n][2], sum[m][n][3]};
        }
}
template <int PARTS> DEV float sum_parts(const float *parts, int o, int size)
{
    float even = 0, odd = 0;
#pragma unroll
    for (int u = 0; u < PARTS; u += 2) even += parts[u * size + o], odd += parts[(u + 1) * size + o];
    return even + odd;
}

// Copies `stage` [ROWS][NARROW_ROW] to all blocks: to [SHARES][ROWS][NARROW_ROW].
DEV void exchange_rows(const Rows &b, const float *stage, const float *to)
{
    before_push();
    __syncthreads();
    if (b.tid == 0) expect(0, SHARES * ROWS * NARROW_ROW * 4);
    push_copies(b.remote, b.warp, b.lane, to + b.rank * ROWS * NARROW_ROW, stage, ROWS * NARROW_ROW, 0);
}
// Other blocks may still copy this block's memory.
DEV void finish()
{
    leave_step();
    all_prepared();
}

// The slot of the edge opposite to e; e itself if there is none. By a warp.
DEV void find_opposite(const Maps &p, const Rows &b, int e)
{
    const int found = opposite(p, b.lane, e);
    if (b.lane == 0) p.reverse[e] = found < 0 ? e : found;
}

enum {
    FORTH_FLOATS = 4 * ROWS + 2 * K + ROWS * 2 * K + ROWS * WIDE_ROW + ROWS * NARROW_ROW + SHARES * ROWS * NARROW_ROW +
                   GROUPS * ROWS * OF_THREE
};
// z1, z2 and z3 of rows, and the opposite edges.
DEV void maps_forth(const Maps &p)
{
    Rows b = rows_here(p);
    if (!b.any) return;
    float middle[8], last[24], share[2 * K];
    fetch(middle, p.weights + (long long)b.rank * MAP_WEIGHTS * THREADS, OF_MIDDLE);
    fetch(last, p.weights + (long long)b.rank * MAP_WEIGHTS * THREADS, OF_LAST);
    const int c = b.tid % C;
#pragma unroll
    for (int k = 0; k < 2 * K; k++) share[k] = p.shares[k * C + c];
    float *at = shared_base();
    int *const knots = (int *)at, *const targets = knots + ROWS, *const sources = targets + ROWS;
    float *const places = at + 3 * ROWS;
    at += 4 * ROWS;
    double *const each = (double *)at;
    at += 2 * K;
    float *const charges = at, *const one = charges + ROWS * 2 * K, *const stage = one + ROWS * WIDE_ROW,
                *const two = stage + ROWS * NARROW_ROW, *const parts = two + SHARES * ROWS * NARROW_ROW;
    prepare_exchanges();
    b.remote = remote_of((b.warp + b.rank) % SHARES);
    if (b.tid < ROWS) {
        const int row = b.first + b.tid, e = row - p.num_atoms;
        const bool alone = e < 0, edge = !alone && row < b.total;
        const int knot = edge ? p.knot[e] : -1;
        knots[b.tid] = alone ? -2 : knot; // -1: no row
        targets[b.tid] = alone ? row : edge ? p.target[e] : 0, sources[b.tid] = alone ? row : edge ? p.source[e] : 0;
        places[b.tid] = edge ? p.place[4LL * e + 3] : 0;
    }
    {
        const int k = b.lane % K;
        double proposed = 0, whole = 0;
#pragma unroll 1
        for (int j = 2 * b.warp + b.lane / K; j < p.num_atoms; j += 2 * WARPS) {
            const float f = p.proposed[(2 * j + 1) * K + k];
            proposed += p.proposed[2 * j * K + k], whole += (double)(f * f + p.least);
        }
        double *all = (double *)parts; // [WARPS][2][K]
        proposed += exchange(proposed, K), whole += exchange(whole, K);
        if (b.lane < K) all[2 * b.warp * K + k] = proposed, all[(2 * b.warp + 1) * K + k] = whole;
        __syncthreads();
        if (b.tid < K) {
            proposed = whole = 0;
#pragma unroll 1
            for (int u = 0; u < WARPS; u++) proposed += all[2 * u * K + k], whole += all[(2 * u + 1) * K + k];
            const double charge = p.wide_charge ? *(const double *)p.charge : (double)*(const float *)p.charge;
            each[k] = (charge - proposed) / (whole + p.slack);
        }
    }
    __syncthreads();
#pragma unroll
    for (int o = b.tid; o < ROWS * 2 * K; o += THREADS) {
        const int r = o / (2 * K), k = o % K, atom = o % (2 * K) < K ? targets[r] : sources[r];
        const float f = p.proposed[(2 * atom + 1) * K + k];
        charges[o] = (float)(p.proposed[2 * atom * K + k] + (double)(f * f + p.least) * each[k]);
    }
    __syncthreads();
    enum { AT_ONCE = 4 };
#pragma unroll 1
    for (int from = b.tid / C * (ROWS / 4), end = from + ROWS / 4; from < end; from += AT_ONCE) {
        float terms[AT_ONCE][TERMS];
#pragma unroll
        for (int r = 0; r < AT_ONCE; r++)
#pragma unroll
            for (int q = 0; q < TERMS; q++)
                terms[r][q] = __ldg(p.table + (long long)max(knots[from + r], 0) * p.interval + q * 3 * C + c);
#pragma unroll
        for (int r = 0; r < AT_ONCE; r++) {
            const int row = from + r, knot = knots[row];
            float z = terms[r][TERMS - 1];
#pragma unroll
            for (int q = TERMS - 2; q >= 0; q--) z = z * places[row] + terms[r][q];
            if (knot == -2) z = p.own[c];
#pragma unroll
            for (int k = 0; k < 2 * K; k += 4) {
                const float4 four = *(const float4 *)(charges + row * 2 * K + k);
                z += four.x * share[k] + four.y * share[k + 1] + four.z * share[k + 2] + four.w * share[k + 3];
            }
            if (knot != -1 && row / (ROWS / SHARES) == b.rank) p.z1[(long long)(b.first + row) * C + c] = z;
            one[row * WIDE_ROW + c] = knot == -1 ? 0 : silu(z);
        }
    }
    __syncthreads();
    const int group = b.warp / 2, half = b.warp % 2;
    {
        float sum[2][2][4] = {};
        multiply_rows<2, 2>(one + group * 16, WIDE_ROW, middle, sum);
        put_part<2>(parts + group * ROWS * OF_TWO + half * 16, OF_TWO, sum);
    }
    __syncthreads();
#pragma unroll
    for (int o = b.tid; o < ROWS * OF_TWO; o += THREADS) {
        const int r = o / OF_TWO, n = b.rank * OF_TWO + o % OF_TWO;
        const float z = sum_parts<GROUPS>(parts, o, ROWS * OF_TWO) + p.middle_bias[n];
        if (knots[r] != -1) p.z2[(long long)(b.first + r) * TWO + n] = z;
        stage[r * NARROW_ROW + o % OF_TWO] = knots[r] == -1 ? 0 : silu(z);
        if (o % OF_TWO < 4) stage[r * NARROW_ROW + OF_TWO + o % OF_TWO] = 0;
    }
    all_prepared();
    exchange_rows(b, stage, two);
    if (b.warp >= WARPS - ROWS / SHARES) {
        const int row = b.first + b.rank * (ROWS / SHARES) + WARPS - 1 - b.warp;
        if (row >= p.num_atoms && row < b.total) find_opposite(p, b, row - p.num_atoms);
    }
    wait_for_cluster(0);
    {
        float sum[2][3][4] = {};
        multiply_rows<3, 4>(two + group * ROWS * NARROW_ROW, NARROW_ROW, last, sum);
        put_part<3>(parts + group * ROWS * OF_THREE + half * 24, OF_THREE, sum);
    }
    __syncthreads();
#pragma unroll
    for (int o = b.tid; o < ROWS * OF_THREE; o += THREADS) {
        const int r = o / OF_THREE, n = b.rank * OF_THREE + o % OF_THREE;
        const float z = sum_parts<GROUPS>(parts, o, ROWS * OF_THREE) + p.last_bias[n];
        if (knots[r] != -1) p.z3[(long long)(b.first + r) * THREE + n] = z;
    }
    finish();
}

// cut(r) and its slope for r within the cutoff: see edge_geometry.py.
DEV void cosine_cut(float r, float cutoff, float &cut, float &slope)
{
    const float turn = 1.5707963267948966f / cutoff, x = turn * r, t = x * x;
    float c = 2.47601369e-05f - 2.60510548e-07f * t, s = 2.60518091e-06f * t - 1.98090563e-04f;
    c = (((c * t - 1.38883609e-03f) * t + 4.16666362e-02f) * t - 4.99999994e-01f) * t + 1.0f;
    s = ((s * t + 8.33305081e-03f) * t - 1.66666580e-01f) * t + 9.99999996e-01f;
    cut = c * c, slope = -2.0f * turn * c * (s * x);
}
DEV N9 nine_at(const float *from, int i, int channel)
{
    N9 x;
#pragma unroll
    for (int k = 0; k < 9; k++) x.v[k] = from[(9LL * i + k) * C + channel];
    return x;
}
// Gradients in z3 of one filter from that in its message, and the message back; along: what they make of the cut.
DEV N9 message_back(const N9 &y, const N9 &gm, float *z, float cut, float &along)
{
    float dots[3], f[3];
    dot_parts(y, gm, dots);
    along = 0;
#pragma unroll
    for (int k = 0; k < 3; k++) {
        f[k] = silu(z[k]), along += f[k] * dots[k];
        z[k] = dots[k] * silu_slope(z[k]) * cut;
    }
    return scale_parts(gm, f[0] * cut, f[1] * cut, f[2] * cut);
}

enum { HALVES = THREADS / WIDE, MESSAGES_FLOATS = HALVES * NINE };
// An atom by each cluster, WIDE channels by each block: what neighbours' gradients GM add to GY of the atom, that in z3 of
// the messages from it, in their place, and the part of pull that comes from the cutoff function.
DEV void messages_back(const Maps &p)
{
    const int i = blockIdx.x / SHARES, rank = blockIdx.x % SHARES, tid = threadIdx.x, col = tid % WIDE, share = tid / WIDE;
    const int channel = rank * WIDE + col, start = p.row_ptr[i], end = p.row_ptr[i + 1];
    float *const parts = shared_base(); // [HALVES][9][WIDE]
    const N9 y = nine_at(p.y, i, channel);
    N9 sent = {};
    float along;
#pragma unroll 1
    for (int base = start; base < end; base += HALVES) {
        const int e = base + share, here = min(e, end - 1);
        const bool inside = e < end && p.knot[here] >= 0;
        const int j = p.source[here], back = p.reverse[here];
        const float stretch = p.lengths[2LL * here], inverse = p.lengths[2LL * here + 1];
        float *const row = p.z3 + (long long)(inside ? p.num_atoms + back : i) * THREE + channel;
        float z[3] = {row[0], row[C], row[2 * C]}, cut, slope;
        const N9 gm = nine_at(p.gm, j, channel);
        cosine_cut(1.0f / inverse, p.cutoff, cut, slope);
        const N9 message = message_back(y, gm, z, cut, along);
        along = inside ? along * slope / stretch : 0;
#pragma unroll
        for (int mask = WIDE / 2; mask; mask >>= 1) along += exchange(along, mask);
        if (e < end && col == 0) p.pull_parts[(long long)rank * p.capacity + e] = along;
        if (inside) {
            sent = add9(sent, message);
#pragma unroll
            for (int k = 0; k < 3; k++) row[k * C] = z[k];
        }
    }
#pragma unroll
    for (int k = 0; k < 9; k++) parts[(share * 9 + k) * WIDE + col] = sent.v[k];
    __syncthreads();
    if (tid < NINE) {
        const int at = (9 * i + tid / WIDE) * C + channel, part = tid < WIDE ? 0 : tid < 4 * WIDE ? 1 : 2;
        const float f = silu(p.z3[(long long)i * THREE + part * C + channel]);
        p.gy[at] += sum_parts<HALVES>(parts, tid, NINE) + f * p.gm[at];
    }
    __syncthreads();
    if (tid < WIDE) { // the message of the atom to itself, when its filter has been used
        float *const row = p.z3 + (long long)i * THREE + channel;
        float z[3] = {row[0], row[C], row[2 * C]};
        message_back(y, nine_at(p.gm, i, channel), z, 1, along);
#pragma unroll
        for (int k = 0; k < 3; k++) row[k * C] = z[k];
    }
}

enum {
    BACK_FLOATS = ROWS + ROWS * LONG_ROW + ROWS * NARROW_ROW + SHARES * ROWS * NARROW_ROW + GROUPS * ROWS * OF_TWO
};
// Overwrites z1 with its gradient, from that in z3.
DEV void maps_back(const Maps &p)
{
    Rows b = rows_here(p);
    if (!b.any) return;
    float last[24], middle[8];
    fetch(last, p.weights + (long long)b.rank * MAP_WEIGHTS * THREADS, OF_LAST_BACK);
    fetch(middle, p.weights + (long long)b.rank * MAP_WEIGHTS * THREADS, OF_MIDDLE_BACK);
    int *const there = (int *)shared_base();
    float *const three = shared_base() + ROWS, *const stage = three + ROWS * LONG_ROW,
                *const two = stage + ROWS * NARROW_ROW, *const parts = two + SHARES * ROWS * NARROW_ROW;
    prepare_exchanges();
    b.remote = remote_of((b.warp + b.rank) % SHARES);
    if (b.tid < ROWS) {
        const int row = b.first + b.tid, e = row - p.num_atoms;
        there[b.tid] = e < 0 || (row < b.total && p.knot[e] >= 0);
    }
    __syncthreads();
#pragma unroll
    for (int o = b.tid; o < ROWS * THREE / 4; o += THREADS) {
        const int r = o / (THREE / 4), k = o % (THREE / 4) * 4;
        *(float4 *)(three + r * LONG_ROW + k) =
            there[r] ? *(const float4 *)(p.z3 + (long long)(b.first + r) * THREE + k) : make_float4(0, 0, 0, 0);
    }
    // This thread's columns of what the products are multiplied with.
    float slopes[ROWS * OF_TWO / THREADS], slope = 0;
#pragma unroll
    for (int u = 0; u < ROWS * OF_TWO / THREADS; u++) {
        const int o = b.tid + u * THREADS, r = o / OF_TWO;
        slopes[u] = there[r] ? p.z2[(long long)(b.first + r) * TWO + b.rank * OF_TWO + o % OF_TWO] : 0;
    }
    const int own_row = b.tid / WIDE;
    float *const own = p.z1 + (long long)(b.first + own_row) * C + b.rank * WIDE + b.tid % WIDE;
    if (there[own_row]) slope = silu_slope(*own);
    __syncthreads();
    const int group = b.warp / 2, half = b.warp % 2;
    {
        float sum[2][2][4] = {};
        multiply_rows<2, 6>(three + group * 48, LONG_ROW, last, sum);
        put_part<2>(parts + group * ROWS * OF_TWO + half * 16, OF_TWO, sum);
    }
    __syncthreads();
#pragma unroll
    for (int u = 0; u < ROWS * OF_TWO / THREADS; u++) {
        const int o = b.tid + u * THREADS, r = o / OF_TWO;
        stage[r * NARROW_ROW + o % OF_TWO] = sum_parts<GROUPS>(parts, o, ROWS * OF_TWO) * silu_slope(slopes[u]);
        if (o % OF_TWO < 4) stage[r * NARROW_ROW + OF_TWO + o % OF_TWO] = 0;
    }
    all_prepared();
    exchange_rows(b, stage, two);
    wait_for_cluster(0);
    {
        float sum[2][2][4] = {};
        multiply_rows<2, 2>(two + b.warp / 2 * ROWS * NARROW_ROW + b.warp % 2 * 16, NARROW_ROW, middle, sum);
        put_part<2>(parts + b.warp * ROWS * WIDE, WIDE, sum);
    }
    __syncthreads();
    const float g = sum_parts<WARPS>(parts, b.tid, ROWS * WIDE) * slope;
    if (there[own_row]) *own = g;
    finish();
}

enum { LANES_OF_EDGES = THREADS / C, ROUND = 4, CHARGES_FLOATS = 2 * LANES_OF_EDGES * C + ROUND * LANES_OF_EDGES * 4 };
// The gradient in the charges of an atom, from that in z1 of the edges to it and from it; and that through a(r) in pull.
DEV void charges_back(const Maps &p)
{
    const int i = blockIdx.x, tid = threadIdx.x, c = tid % C, share = tid / C, lane = tid % 32, warp = tid / 32;
    if (i >= p.num_atoms) return;
    float *const sums = shared_base(), *const pulls = sums + 2 * LANES_OF_EDGES * C;
    const int start = p.row_ptr[i], end = p.row_ptr[i + 1];
    float as_target = share ? 0 : p.z1[(long long)i * C + c], as_source = as_target;
#pragma unroll 1
    for (int base = start; base < end; base += ROUND * LANES_OF_EDGES) {
        float g[ROUND], of_source[ROUND], terms[ROUND][TERMS], t[ROUND];
#pragma unroll
        for (int u = 0; u < ROUND; u++) {
            const int e = base + u * LANES_OF_EDGES + share, here = min(e, end - 1), knot = p.knot[here];
            const bool inside = e < end && knot >= 0;
            const int back = inside ? p.reverse[here] : here;
            g[u] = inside ? p.z1[(long long)(p.num_atoms + here) * C + c] : 0;
            of_source[u] = inside ? p.z1[(long long)(p.num_atoms + back) * C + c] : 0;
            t[u] = p.place[4LL * here + 3];
#pragma unroll
            for (int q = 1; q < TERMS; q++)
                terms[u][q] = __ldg(p.table + (long long)max(knot, 0) * p.interval + q * 3 * C + c);
        }
#pragma unroll
        for (int u = 0; u < ROUND; u++) {
            as_target += g[u], as_source += of_source[u];
            float slope = (TERMS - 1) * terms[u][TERMS - 1];
#pragma unroll
            for (int q = TERMS - 2; q > 0; q--) slope = slope * t[u] + q * terms[u][q];
            float along = g[u] * slope;
#pragma unroll
            for (int mask = 16; mask; mask >>= 1) along += exchange(along, mask);
            if (lane == 0) pulls[(u * LANES_OF_EDGES + share) * 4 + warp % 4] = along;
        }
        __syncthreads();
        const int e = base + tid;
        if (tid < ROUND * LANES_OF_EDGES && e < end) {
            float pull = pulls[4 * tid] + pulls[4 * tid + 1] + pulls[4 * tid + 2] + pulls[4 * tid + 3];
#pragma unroll 1
            for (int s = 0; s < SHARES; s++) pull += p.pull_parts[(long long)s * p.capacity + e];
            p.pull[e] = p.adds_pull ? p.pull[e] + pull : pull;
        }
        __syncthreads();
    }
    sums[share * C + c] = as_target, sums[(LANES_OF_EDGES + share) * C + c] = as_source;
    __syncthreads();
    float total = 0; // of the charge with the number of the warp
#pragma unroll
    for (int from = 0; from < C; from += 32) {
        float of_target = 0, of_source = 0;
#pragma unroll
        for (int u = 0; u < LANES_OF_EDGES; u++)
            of_target += sums[u * C + from + lane], of_source += sums[(LANES_OF_EDGES + u) * C + from + lane];
        const float *w = p.shares_back + (from + lane) * 2 * K + warp;
        total += of_target * w[0] + of_source * w[K];
    }
#pragma unroll
    for (int mask = 16; mask; mask >>= 1) total += exchange(total, mask);
    if (lane == 0) p.gq[i * K + warp] = p.adds ? p.gq[i * K + warp] + total : total;
}

#ifndef EMULATED
extern "C" __global__ void __launch_bounds__(THREADS, 1) charged_maps_forth(const __grid_constant__ Maps p)
{
    maps_forth(p);
}
extern "C" __global__ void __launch_bounds__(THREADS, 2) charged_messages_back(const __grid_constant__ Maps p)
{
    messages_back(p);
}
extern "C" __global__ void __launch_bounds__(THREADS, 1) charged_maps_back(const __grid_constant__ Maps p)
{
    maps_back(p);
}
extern "C" __global__ void __launch_bounds__(THREADS, 1) charged_charges_back(const __grid_constant__ Maps p)
{
    charges_back(p);
}
#endif
