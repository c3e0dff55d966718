// The maps of TensorNet2's filters and their gradient for many edges, on an H100 or H200; see edge_maps.py and
// edge_mlp.py. A product of float32 numbers is three of their half-precision parts (fp16_parts.py).
//
// Two warpgroups of a block multiply, each with 64 rows whose values stay in its registers; one thread of the third
// brings the matrices through stages of shared memory. The blocks of a cluster copy half of every stage each, into the
// shared memory of both. While one warpgroup activates values, the other multiplies.
//
// Order of columns: a thread of a product has, of every 16 columns, two pairs that are eight apart. Matrices are packed
// so that these are four adjacent columns in memory, which it reads and writes as a float4.

#include "edge_maps_machine.cuh"

struct Params {
    float *z1;            // [rows,128]; backward: becomes its gradient
    float *z3;            // [rows,384]; backward: its gradient
    float *slopes;        // [rows,256] of the activation behind z2, if these are kept
    const char *matrices; // stages in the order in which they are used
    const float *middle_bias, *last_bias;
    const int *row_ptr; // [num_atoms+1]; rows in use are atoms and edges
    int num_atoms, rows;
    float middle_unit, last_unit;
};

// The stages of shared memory: FULL and EMPTY barriers, and the place of the next one.
template <int COUNT> struct Stages {
    unsigned base, there; // `there`: of the block of the cluster that this lane tells when its warp leaves a stage
    unsigned stage = 0, parity = 0;
    MEMBER unsigned memory() const { return base + stage * STAGE; }
    MEMBER unsigned full(unsigned s) const { return base + COUNT * STAGE + s * BARRIER; }
    MEMBER unsigned empty(unsigned s) const { return full(s) + COUNT * BARRIER; }
    MEMBER void prepare() const
    {
        for (int s = 0; s < COUNT; s++) prepare_barrier(full(s), 1), prepare_barrier(empty(s), CLUSTER * 4 * GROUPS);
        show_barriers();
    }
    MEMBER void next()
    {
        if (++stage == COUNT) stage = 0, parity ^= 1;
    }
    MEMBER void bring(const char *from, unsigned rank)
    {
        wait_for(empty(stage), parity ^ 1);
        expect(full(stage), STAGE);
        const unsigned share = rank * (STAGE / CLUSTER);
        copy_to_all(memory() + share, from + share, STAGE / CLUSTER, full(stage));
        next();
    }
    // The stage that came next, for this warpgroup.
    MEMBER unsigned take()
    {
        wait_for(full(stage), parity);
        const unsigned at = memory();
        next();
        return at;
    }
    // This warp has read the stage that was taken `back` before the last one.
    MEMBER void leave(unsigned lane, unsigned back) const
    {
        const unsigned s = stage > back ? stage - 1 - back : stage + COUNT - 1 - back;
        if (lane < CLUSTER) arrive_at(there + empty(s) - base);
    }
};

DEV int last_row(const Params &p) { return min(p.num_atoms + p.row_ptr[p.num_atoms], p.rows); }

// Rows are dealt out in rounds, ROWS to each block. If half of that is enough for the last round, then only the first
// warpgroups multiply, with the tensor cores to themselves.
struct Rounds {
    int last, whole, rows_of_rest, count; // `whole`: rounds; `count`: of this cluster
    MEMBER Rounds(const Params &p)
    {
        last = last_row(p);
        const int all = gridDim.x * ROWS, rest = last % all;
        whole = last / all;
        rows_of_rest = 2 * rest <= all ? ROWS / 2 : ROWS;
        count = whole + ((int)blockIdx.x / CLUSTER * CLUSTER * rows_of_rest < rest);
    }
    MEMBER bool half(int round) const { return round == whole && rows_of_rest < ROWS; }
    MEMBER int first_row(int round) const
    {
        return round * gridDim.x * ROWS + blockIdx.x * (round < whole ? ROWS : rows_of_rest);
    }
};

template <int COUNT, int PER_TILE> DEV void bring_matrices(const Params &p, Stages<COUNT> stages)
{
    const int rank = block_rank();
    const int rounds = Rounds(p).count;
    for (int round = 0; round < rounds; round++)
        for (int k = 0; k < PER_TILE; k++) stages.bring(p.matrices + (long long)k * STAGE, rank);
}

// What a warpgroup without rows does.
template <int COUNT, int PER_TILE> DEV void pass_over(Stages<COUNT> &stages)
{
    for (int k = 0; k < PER_TILE; k++) stages.take(), stages.leave(threadIdx.x % 32, 0);
}

// Where a thread is: rows `row` and row + 8 of 64, columns 4 `quarter` to 4 `quarter` + 3 of 16.
struct Spot {
    unsigned lane, quarter;
    int row;
    bool valid[2];
    MEMBER Spot(const Rounds &rounds, int round)
    {
        const unsigned warp = threadIdx.x / 32;
        lane = threadIdx.x % 32, quarter = lane % 4;
        row = rounds.first_row(round) + warp * 16 + lane / 4;
        valid[0] = row < rounds.last, valid[1] = row + 8 < rounds.last;
    }
};

// Make up for what tensor cores cut off of sums over 128 and 64 channels: see tf32_product.py. An emulation cuts nothing.
#ifdef EMULATED
#define RESTORE_128 1.0f
#define RESTORE_64 1.0f
#else
#define RESTORE_128 (1.0f + 2.0f / (1 << 23))
#define RESTORE_64 (1.0f + 1.0f / (1 << 23))
#endif

DEV float sigmoid(float z) { return reciprocal(1.0f + power_of_2(-1.4426950408889634f * z)); }
DEV float slope(float z)
{
    const float s = sigmoid(z);
    return s * (1.0f + z * (1.0f - s));
}

// Columns of two rows, as a product has them: [..,2 pairs,2 rows,2].
template <int N> DEV void read_rows(const Spot &at, const float *from, int stride, float (&x)[N])
{
#pragma unroll
    for (int h = 0; h < N / 8; h++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float4 v = make_float4(0, 0, 0, 0);
            if (at.valid[i]) v = *(const float4 *)(from + (long long)(at.row + 8 * i) * stride + 16 * h + 4 * at.quarter);
            x[8 * h + 2 * i] = v.x, x[8 * h + 2 * i + 1] = v.y;
            x[8 * h + 2 * i + 4] = v.z, x[8 * h + 2 * i + 5] = v.w;
        }
}
template <int N> DEV void write_rows(const Spot &at, float *to, int stride, const float (&x)[N])
{
#pragma unroll
    for (int h = 0; h < N / 8; h++)
#pragma unroll
        for (int i = 0; i < 2; i++)
            if (at.valid[i])
                *(float4 *)(to + (long long)(at.row + 8 * i) * stride + 16 * h + 4 * at.quarter) = make_float4(
                    x[8 * h + 2 * i], x[8 * h + 2 * i + 1], x[8 * h + 2 * i + 4], x[8 * h + 2 * i + 5]);
}
// x · unit of its row + bias of its column.
template <int N> DEV void scale_and_add(const Spot &at, float (&x)[N], const float (&unit)[2], const float *bias)
{
#pragma unroll
    for (int h = 0; h < N / 8; h++) {
        const float4 b = __ldg((const float4 *)(bias + 16 * h + 4 * at.quarter));
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float *v = x + 8 * h + 2 * i;
            v[0] = v[0] * unit[i] + b.x, v[1] = v[1] * unit[i] + b.y;
            v[4] = v[4] * unit[i] + b.z, v[5] = v[5] * unit[i] + b.w;
        }
    }
}

// x = unit · (big + small), a power of two for each row.
template <int N> DEV void split(const float (&x)[N], unsigned (&big)[N / 2], unsigned (&small)[N / 2], float (&unit)[2])
{
    float scale[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float most = 0;
#pragma unroll
        for (int k = 0; k < N; k += 4) most = fmaxf(most, fmaxf(fabsf(x[k + 2 * i]), fabsf(x[k + 2 * i + 1])));
        most = fmaxf(most, exchange(most, 1));
        most = fmaxf(most, exchange(most, 2));
        const int exponent = min(max(__float_as_int(most) >> 23, 27), 250);
        scale[i] = __int_as_float((268 - exponent) << 23), unit[i] = __int_as_float((exponent - 14) << 23);
    }
#pragma unroll
    for (int k = 0; k < N / 2; k++) {
        const float a = x[2 * k] * scale[k % 2], b = x[2 * k + 1] * scale[k % 2];
        big[k] = pack_halves(a, b);
        const float2 back = unpack_halves(big[k]);
        small[k] = pack_halves(a - back.x, b - back.y);
    }
}

// d = (big + small) (w + w_small)ᵀ without the product of the small ones, K inner columns. The next stage holds w and
// w_small; `first`: no products are under way.
template <int K, int N, int COUNT>
DEV void multiply_parts(Stages<COUNT> &stages, const Spot &at, float (&d)[N], const unsigned *big,
                        const unsigned *small, bool first)
{
    const unsigned width = 2 * N * 128; // bytes of 64 inner columns
    const unsigned w = stages.take(), w_small = w + STAGE / 2;
    begin_products();
#pragma unroll
    for (int k = 0; k < K / 16; k++) multiply(d, small + 4 * k, w + k / 4 * width + k % 4 * 32, k > 0);
#pragma unroll
    for (int k = 0; k < K / 16; k++) multiply(d, big + 4 * k, w_small + k / 4 * width + k % 4 * 32, true);
#pragma unroll
    for (int k = 0; k < K / 16; k++) multiply(d, big + 4 * k, w + k / 4 * width + k % 4 * 32, true);
    end_products();
    if (!first) wait_for_products<1>(), stages.leave(at.lane, 1);
}
// The last products are done.
template <int COUNT> DEV void finish_products(Stages<COUNT> &stages, const Spot &at)
{
    wait_for_products<0>();
    stages.leave(at.lane, 0);
}

#define FORWARD_STAGES 6
#define FORWARD_PER_TILE 16
#define FORWARD_BYTES (FORWARD_STAGES * STAGE + BARRIERS)

// SLOPES: keeps those of z2's activation.
template <bool SLOPES> DEV void forward_rows(const Params &p, Stages<FORWARD_STAGES> &stages, const Spot &at)
{
    unsigned big[64], small[64];
    float unit[2];
    {
        float z[4][32];
        {
            float x[64];
            unsigned a[32], a_small[32];
            read_rows(at, p.z1, 128, x);
#pragma unroll
            for (int k = 0; k < 64; k++) x[k] *= sigmoid(x[k]);
            split(x, a, a_small, unit);
#pragma unroll
            for (int n = 0; n < 4; n++) multiply_parts<128>(stages, at, z[n], a, a_small, n == 0);
            finish_products(stages, at);
            hold(a), hold(a_small);
        }
        float v[128];
        unit[0] *= p.middle_unit * RESTORE_128, unit[1] *= p.middle_unit * RESTORE_128;
#pragma unroll
        for (int n = 0; n < 4; n++) {
            hold(z[n]);
            scale_and_add(at, z[n], unit, p.middle_bias + 64 * n);
#pragma unroll
            for (int k = 0; k < 32; k++) {
                const float s = sigmoid(z[n][k]);
                v[32 * n + k] = z[n][k] * s;
                z[n][k] = s + v[32 * n + k] * (1.0f - s);
            }
            if (SLOPES) write_rows(at, p.slopes + 64 * n, 256, z[n]);
        }
        split(v, big, small, unit);
        unit[0] *= p.last_unit * RESTORE_128, unit[1] *= p.last_unit * RESTORE_128;
    }
#pragma unroll 1
    for (int n = 0; n < 6; n++) {
        float y[32], other[32];
        hold(big), hold(small);
        multiply_parts<128>(stages, at, y, big, small, true);
        multiply_parts<128>(stages, at, other, big + 32, small + 32, false);
        finish_products(stages, at);
        hold(y), hold(other), hold(big), hold(small);
#pragma unroll
        for (int k = 0; k < 32; k++) y[k] += other[k];
        scale_and_add(at, y, unit, p.last_bias + 64 * n);
        write_rows(at, p.z3 + 64 * n, 384, y);
    }
}

#define BACKWARD_STAGES 5
#define BACKWARD_PER_TILE 20
#define SLOPES_PER_TILE 16
// Behind the barriers are 64 floats of each thread that multiplies.
#define BACKWARD_BYTES (BACKWARD_STAGES * STAGE + BARRIERS + 64 * 4 * 128 * GROUPS)

// x = (big + small) of 128 columns times the matrix in the next two stages, from here to `finish_two`.
DEV void begin_two(Stages<BACKWARD_STAGES> &stages, const Spot &at, float (&x)[64], unsigned (&big)[32],
                   unsigned (&small)[32])
{
    const unsigned first = stages.take(), second = stages.take();
    hold(big), hold(small);
    begin_products();
#pragma unroll
    for (int k = 0; k < 8; k++) multiply(x, small + 4 * k, (k < 4 ? first : second) + k % 4 * 32, k > 0);
#pragma unroll
    for (int k = 0; k < 8; k++) multiply(x, big + 4 * k, (k < 4 ? first : second) + STAGE / 2 + k % 4 * 32, true);
#pragma unroll
    for (int k = 0; k < 8; k++) multiply(x, big + 4 * k, (k < 4 ? first : second) + k % 4 * 32, true);
    end_products();
}
DEV void finish_two(Stages<BACKWARD_STAGES> &stages, const Spot &at, float (&x)[64], unsigned (&big)[32],
                    unsigned (&small)[32])
{
    wait_for_products<0>();
    stages.leave(at.lane, 1), stages.leave(at.lane, 0);
    hold(x), hold(big), hold(small);
}

// SLOPES: those of z2's activation were kept; else z2 is evaluated again.
template <bool SLOPES>
DEV void backward_rows(const Params &p, Stages<BACKWARD_STAGES> &stages, const Spot &at, float *kept)
{
    float x[64], next[32];
    if (SLOPES) read_rows(at, p.z3, 384, next); // else there are no registers to read ahead over products of z2
#pragma unroll 1
    for (int half = 0; half < 2; half++) {
        float g[64], unit[2];
        unsigned big[32], small[32];
        // What follows the gradient behind the activation.
        const float *from = SLOPES ? p.slopes + 128 * half : p.z1;
        const int stride = SLOPES ? 256 : 128;
        if (!SLOPES) read_rows(at, p.z3, 384, next);
#pragma unroll
        for (int k = 0; k < 64; k++) g[k] = 0;
#pragma unroll 1
        for (int c = 0; c < 6; c++) {
            unsigned a[16], a_small[16];
            split(next, a, a_small, unit);
            hold(a), hold(a_small);
            read_rows(at, c < 5 ? p.z3 + 64 * (c + 1) : from, c < 5 ? 384 : stride, next);
            multiply_parts<64>(stages, at, x, a, a_small, true);
            finish_products(stages, at);
            hold(x), hold(a), hold(a_small);
#pragma unroll
            for (int k = 0; k < 64; k++) g[k] += x[k] * (unit[k / 2 % 2] * (p.last_unit * RESTORE_64));
        }
        {
            float more[32];
            read_rows(at, from + 64, stride, more);
#pragma unroll
            for (int k = 0; k < 32; k++) x[k] = next[k], x[32 + k] = more[k];
        }
        if (!SLOPES) {
#pragma unroll
            for (int k = 0; k < 64; k++) x[k] *= sigmoid(x[k]);
            split(x, big, small, unit);
            begin_two(stages, at, x, big, small);
            finish_two(stages, at, x, big, small);
            unit[0] *= p.middle_unit * RESTORE_128, unit[1] *= p.middle_unit * RESTORE_128;
            scale_and_add(at, x, unit, p.middle_bias + 128 * half);
#pragma unroll
            for (int k = 0; k < 64; k++) x[k] = slope(x[k]);
        }
#pragma unroll
        for (int k = 0; k < 64; k++) g[k] *= x[k];
        split(g, big, small, unit);
        begin_two(stages, at, x, big, small);
        if (SLOPES && half == 0) read_rows(at, p.z3, 384, next);
        finish_two(stages, at, x, big, small);
        unit[0] *= p.middle_unit * RESTORE_128, unit[1] *= p.middle_unit * RESTORE_128;
#pragma unroll
        for (int k = 0; k < 64; k++) x[k] *= unit[k / 2 % 2];
        if (half == 0)
#pragma unroll
            for (int k = 0; k < 64; k++) kept[k * (128 * GROUPS)] = x[k];
    }
#pragma unroll
    for (int k = 0; k < 64; k++) x[k] += kept[k * (128 * GROUPS)];
    float z[64];
    read_rows(at, p.z1, 128, z);
#pragma unroll
    for (int k = 0; k < 64; k++) x[k] *= slope(z[k]);
    write_rows(at, p.z1, 128, x);
}

template <int COUNT> DEV Stages<COUNT> prepared()
{
    Stages<COUNT> stages{shared_start(), shared_start_of(threadIdx.x % CLUSTER)};
    if (threadIdx.x == 0) stages.prepare();
    meet_cluster();
    return stages;
}

template <bool SLOPES> DEV void forward(const Params &p)
{
    Stages<FORWARD_STAGES> stages = prepared<FORWARD_STAGES>();
    if (threadIdx.x >= 128 * GROUPS) {
        leave_registers<24>();
        if (threadIdx.x == 128 * GROUPS) bring_matrices<FORWARD_STAGES, FORWARD_PER_TILE>(p, stages);
        meet_warp();
    } else {
        take_registers<240>();
        for (int round = 0;; round++) {
            const Rounds rounds(p); // again and again, since registers are scarce
            if (round >= rounds.count) break;
            if (rounds.half(round) && threadIdx.x >= 128) {
                pass_over<FORWARD_STAGES, FORWARD_PER_TILE>(stages);
                break; // it is the last round
            }
            forward_rows<SLOPES>(p, stages, Spot(rounds, round));
        }
    }
    meet_cluster();
}

template <bool SLOPES> DEV void backward(const Params &p)
{
    Stages<BACKWARD_STAGES> stages = prepared<BACKWARD_STAGES>();
    if (threadIdx.x >= 128 * GROUPS) {
        leave_registers<24>();
        if (threadIdx.x == 128 * GROUPS) 
            bring_matrices<BACKWARD_STAGES, SLOPES ? SLOPES_PER_TILE : BACKWARD_PER_TILE>(p, stages);
        meet_warp();
    } else {
        take_registers<240>();
        float *kept = shared_floats(BACKWARD_STAGES * STAGE + BARRIERS) + threadIdx.x;
        for (int round = 0;; round++) {
            const Rounds rounds(p); // again and again, since registers are scarce
            if (round >= rounds.count) break;
            if (rounds.half(round) && threadIdx.x >= 128) {
                pass_over<BACKWARD_STAGES, SLOPES ? SLOPES_PER_TILE : BACKWARD_PER_TILE>(stages);
                break;
            }
            backward_rows<SLOPES>(p, stages, Spot(rounds, round), kept);
        }
    }
    meet_cluster();
}

#ifndef EMULATED
// Each kernel is compiled by itself: NAME, which calls KERNEL, one of the functions above.
extern "C" __global__ void __launch_bounds__(THREADS, 1) NAME(const __grid_constant__ Params p) { KERNEL(p); }
#endif
