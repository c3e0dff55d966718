// What the machine offers to atom_tiles.cu: halves of floats, copies, and products of warpgroups on tensor cores.
// EMULATED: the same functions on a CPU, where a product is a plain loop.
#pragma once
#include "quads.cuh"

enum { WARPS = 8, THREADS = 32 * WARPS };
enum { STEP = 512 }; // words of 16 bytes of 16 inner channels of a matrix, both of its parts

// The nine components of ATOMS atoms in shared memory, in 512 bytes each: 128 floats, or 128 big and 128 small halves.
// Pieces of 16 bytes lie where products expect a row of 64 halves: swizzled, in 128 bytes next to those of seven other
// rows. `rows` is a multiple of 1024 bytes, as the beginning of dynamic shared memory is if there is no other.
struct Tile {
    float *rows, *units; // units: what a row of a result is to be multiplied with

    MEMBER float *at(int component, int atom, int piece) const
    {
        const int row = atom % 8;
        return rows + component * (ATOMS * C) + atom / 8 * (8 * C) + piece / 8 * 256 + row * 32 + (piece % 8 ^ row) * 4;
    }
};

#ifdef EMULATED
DEV void wait_for_warp() { exchange(0, 0); }
DEV void copy_later(float *to, const float *from) { memcpy(to, from, 16); }
DEV void wait_for_copies() {}
DEV void show_to_products() {}
struct Weights {
    const uint4 *first;
    Weights(const uint4 *matrices) : first(matrices) {}
};
DEV float2 half_pair(const Tile &tile, int component, int atom, int k, int small)
{
    const int half = 128 * small + k; // of 8 in 16 bytes
    return unpack_halves(((const unsigned *)tile.at(component, atom, half / 8))[half % 8 / 2]);
}
template <int FIRST, int COUNT>
DEV void sum_products(const Tile &tile, Weights &weights, float (&sums)[COUNT * ATOMS / 2])
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint4 *const matrix = weights.first + (FIRST == 4 ? 0 : FIRST == 1 ? 8 : 16) * STEP;
    for (int k = 0; k < COUNT * ATOMS / 2; k++) {
        const int row = k / 4 * 8 + lane % 4 * 2 + k % 2;
        sums[k] = 0;
        for (int inner = 0; inner < C; inner += 2) {
            // The thread and the word that hold these inner channels of this output.
            const int word = inner % 16 / 8 * 2 + k / 2 % 2, holder = warp % 4 * 32 + lane / 4 * 4 + inner % 8 / 2;
            const uint4 *w = matrix + inner / 16 * STEP + warp / 4 * 256 + holder;
            const float2 wb = unpack_halves(((const unsigned *)w)[word]);
            const float2 ws = unpack_halves(((const unsigned *)(w + 128))[word]);
            const float2 xb = half_pair(tile, FIRST + row / ATOMS, row % ATOMS, inner, 0);
            const float2 xs = half_pair(tile, FIRST + row / ATOMS, row % ATOMS, inner, 1);
            sums[k] += xs.x * wb.x + xb.x * ws.x + xb.x * wb.x + xs.y * wb.y + xb.y * ws.y + xb.y * wb.y;
        }
    }
}
#else
#include "warpgroup_products.cuh"
DEV void wait_for_warp() { __syncwarp(); }
// 16 bytes to shared memory; this thread may read them after wait_for_copies.
DEV void copy_later(float *to, const float *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
}
DEV void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }
// Before __syncthreads: products read what this thread has written to shared memory.
DEV void show_to_products() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
DEV uint4 weights_of(const uint4 *p)
{
    uint4 v;
    asm volatile("ld.global.nc.L1::evict_last.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}
// The matrices of a product in the order of their use, read AHEAD steps before it.
struct Weights {
    const uint4 *next;
    uint4 read[AHEAD][2]; // big and small

    MEMBER Weights(const uint4 *matrices) : next(matrices + threadIdx.x / 128 * 256 + threadIdx.x % 128)
    {
#pragma unroll
        for (int turn = 0; turn < AHEAD; turn++) follow(turn);
        next += AHEAD * STEP;
    }
    MEMBER void follow(int turn)
    {
        read[turn][0] = weights_of(next + turn * STEP);
        read[turn][1] = weights_of(next + turn * STEP + 128);
    }
};
// Where rows of halves begin in shared memory, for the tensor core: see `Tile`.
DEV unsigned long long described(unsigned at) { return described(at, 4096); }
// Sums of COUNT components times their matrix. Every step of 16 inner channels is added outside the tensor core, whose
// sums lose bits. A thread makes two outputs, eight apart, for two rows of every eight: see `multiply_part`.
template <int FIRST, int COUNT>
DEV void sum_products(const Tile &tile, Weights &weights, float (&sums)[COUNT * ATOMS / 2])
{
    constexpr int EACH = COUNT * ATOMS / 2;
    const unsigned rows = shared_address(tile.rows + FIRST * ATOMS * C);
#pragma unroll
    for (int k = 0; k < EACH; k++) sums[k] = 0;
#pragma unroll 1
    for (int first = 0; first < 8; first += AHEAD) {
#pragma unroll
        for (int turn = 0; turn < AHEAD; turn++) {
            const int step = first + turn;
            const unsigned big = rows + step / 4 * 1024 + step % 4 * 32, small = big + 2048;
            const uint4(&w)[2] = weights.read[turn];
            float made[EACH];
            begin_products();
            multiply_add(made, w[0], described(small), false);
            multiply_add(made, w[1], described(big), true);
            multiply_add(made, w[0], described(big), true);
            end_products();
            wait_for_products<0>();
            hold(made); // not read before it is there
#pragma unroll
            for (int k = 0; k < EACH; k++) sums[k] += made[k];
            if (FIRST > 0 || first + AHEAD < 8) weights.follow(turn);
        }
        weights.next += AHEAD * STEP;
    }
}
#endif
