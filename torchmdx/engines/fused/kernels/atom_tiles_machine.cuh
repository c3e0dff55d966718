// What the machine offers to atom_tiles.cu: halves of floats, and products on tensor cores. EMULATED: the same
// functions on a CPU, where a product is a plain loop.
#pragma once
#include "one_launch_nine.cuh"

#ifndef ATOMS
#define ATOMS 16 // of a tile
#endif
#ifndef WIDE
#define WIDE 32 // columns of a warp in a product
#endif
#ifndef BLOCKS
#define BLOCKS 3 // of a multiprocessor
#endif
enum { C = 128, GROUPS = C / WIDE, WARPS = ATOMS / 16 * GROUPS, THREADS = 32 * WARPS, PIECES = WIDE / 8 };

// Where 16 bytes of a row lie, so that neither rows nor columns of a fragment meet in a bank.
DEV int place(int atom, int chunk) { return chunk ^ ((atom & 3) << 1 | (atom >> 2 & 1)); }

#ifdef EMULATED
DEV unsigned pack_halves(float a, float b)
{
    const _Float16 h[2] = {(_Float16)a, (_Float16)b};
    unsigned v;
    memcpy(&v, h, sizeof v);
    return v;
}
DEV float2 unpack_halves(unsigned v)
{
    _Float16 h[2];
    memcpy(h, &v, sizeof h);
    return {(float)h[0], (float)h[1]};
}
DEV void wait_for_warp() { exchange(0, 0); }
#else
DEV unsigned pack_halves(float a, float b)
{
    unsigned v;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(b), "f"(a));
    return v;
}
DEV float2 unpack_halves(unsigned v)
{
    float2 f;
    asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %2;\ncvt.f32.f16 %0, low;\ncvt.f32.f16 %1, high;\n}"
        : "=f"(f.x), "=f"(f.y)
        : "r"(v));
    return f;
}
DEV void wait_for_warp() { __syncwarp(); }
// 16 rows and 16 inner channels of a matrix of halves in shared memory; `at` is this lane's row of eight of them.
DEV void load_rows(unsigned (&a)[4], const float *at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                 : "r"(shared_address(at)));
}
DEV void multiply_add(float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
DEV uint4 weights_of(const uint4 *p)
{
    uint4 v;
    asm volatile("ld.global.nc.L1::evict_last.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}
#endif

// The nine components of ATOMS atoms in shared memory, in 512 bytes each: 128 floats, or 128 big and 128 small halves.
struct Tile {
    float *rows;

    MEMBER float *at(int component, int atom, int chunk) const
    {
        return rows + (component * ATOMS + atom) * C + 4 * place(atom, chunk);
    }
};

#ifdef EMULATED
DEV float2 half_pair(const Tile &tile, int component, int atom, int k, int small)
{
    const int half = 128 * small + k; // of 8 in 16 bytes
    return unpack_halves(((const unsigned *)tile.at(component, atom, half / 8))[half % 8 / 2]);
}
template <int FIRST, int COUNT> static void multiply_part(const Tile &tile, const uint4 *weights)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, columns = warp % GROUPS, group = warp / GROUPS;
    float result[COUNT][2][2 * PIECES];
    for (int m = 0; m < COUNT; m++)
        for (int row = 0; row < 2; row++)
            for (int n = 0; n < 2 * PIECES; n++) {
                const int atom = 16 * group + lane / 4 + 8 * row, piece = n / 2, g = lane % 4 * 2 + n % 2;
                float sum = 0;
                for (int step = 0; step < 8; step++)
                    for (int k = 0; k < 16; k += 2) {
                        // The lane and the word that hold inner channels k, k + 1 of column g.
                        const int holder = 4 * g + k % 8 / 2, word = piece % 2 * 2 + k / 8;
                        const uint4 *w = weights + ((step * GROUPS + columns) * PIECES + piece / 2) * 32 + holder;
                        const float2 wb = unpack_halves(((const unsigned *)w)[word]);
                        const float2 ws = unpack_halves(((const unsigned *)(w + PIECES / 2 * 32))[word]);
                        const float2 xb = half_pair(tile, FIRST + m, atom, 16 * step + k, 0);
                        const float2 xs = half_pair(tile, FIRST + m, atom, 16 * step + k, 1);
                        sum += xs.x * wb.x + xb.x * ws.x + xb.x * wb.x + xs.y * wb.y + xb.y * ws.y + xb.y * wb.y;
                    }
                result[m][row][n] = sum;
            }
    __syncthreads();
    for (int m = 0; m < COUNT; m++)
        for (int row = 0; row < 2; row++)
            for (int n = 0; n < 2 * PIECES; n++) {
                const int column = WIDE * columns + n / 2 * 8 + lane % 4 * 2 + n % 2;
                tile.at(FIRST + m, 16 * group + lane / 4 + 8 * row, column / 4)[column % 4] = result[m][row][n];
            }
}
#else
// Rows of COUNT components times their matrix, in place; a warp makes WIDE columns of 16 atoms. Every step of 16 inner
// channels is added outside the tensor core, whose sums lose bits.
template <int FIRST, int COUNT> DEV void multiply_part(const Tile &tile, const uint4 *weights)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, columns = warp % GROUPS, group = warp / GROUPS;
    const int atom = 16 * group + lane % 16;
    const float *rows = tile.rows + (FIRST * ATOMS + atom) * C;
    weights += columns * PIECES * 32 + lane;
    float sums[COUNT][PIECES][4];
    uint4 next[PIECES];
#pragma unroll
    for (int m = 0; m < COUNT; m++)
#pragma unroll
        for (int k = 0; k < 4 * PIECES; k++) sums[m][k / 4][k % 4] = 0;
#pragma unroll
    for (int k = 0; k < PIECES; k++) next[k] = weights_of(weights + 32 * k);
#pragma unroll 1
    for (int step = 0; step < 8; step++) {
        unsigned w[2][PIECES][2];
#pragma unroll
        for (int k = 0; k < PIECES; k++) {
            unsigned(&pair)[PIECES][2] = w[k / (PIECES / 2)];
            const int piece = k % (PIECES / 2) * 2;
            pair[piece][0] = next[k].x, pair[piece][1] = next[k].y;
            pair[piece + 1][0] = next[k].z, pair[piece + 1][1] = next[k].w;
        }
        weights += GROUPS * PIECES * 32;
        if (step < 7)
#pragma unroll
            for (int k = 0; k < PIECES; k++) next[k] = weights_of(weights + 32 * k);
        const int big = 4 * place(atom, 2 * step + lane / 16), small = 4 * place(atom, 16 + 2 * step + lane / 16);
#pragma unroll
        for (int m = 0; m < COUNT; m++) {
            unsigned x[4], rest[4];
            load_rows(x, rows + m * ATOMS * C + big);
            load_rows(rest, rows + m * ATOMS * C + small);
            float sum[PIECES][4];
#pragma unroll
            for (int k = 0; k < 4 * PIECES; k++) sum[k / 4][k % 4] = 0;
#pragma unroll
            for (int n = 0; n < PIECES; n++) multiply_add(sum[n], rest, w[0][n][0], w[0][n][1]);
#pragma unroll
            for (int n = 0; n < PIECES; n++) multiply_add(sum[n], x, w[1][n][0], w[1][n][1]);
#pragma unroll
            for (int n = 0; n < PIECES; n++) multiply_add(sum[n], x, w[0][n][0], w[0][n][1]);
#pragma unroll
            for (int k = 0; k < 4 * PIECES; k++) sums[m][k / 4][k % 4] += sum[k / 4][k % 4];
        }
    }
    __syncthreads(); // all have read these rows
    const int row = 16 * group + lane / 4;
#pragma unroll
    for (int m = 0; m < COUNT; m++)
#pragma unroll
        for (int n = 0; n < PIECES; n++) {
            const int chunk = WIDE / 4 * columns + 2 * n + lane % 4 / 2, within = lane % 2 * 2;
            *(float2 *)(tile.at(FIRST + m, row, chunk) + within) = make_float2(sums[m][n][0], sums[m][n][1]);
            *(float2 *)(tile.at(FIRST + m, row + 8, chunk) + within) = make_float2(sums[m][n][2], sums[m][n][3]);
        }
}
#endif
