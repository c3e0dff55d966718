// What the machine offers to atom_tiles.cu: halves of floats, copies, and products of warpgroups on tensor cores.
// EMULATED: the same functions on a CPU, where a product is a plain loop.
#pragma once
#include "one_launch_nine.cuh"

enum { C = 128, WARPS = 8, THREADS = 32 * WARPS };
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
// Where rows of halves begin in shared memory, for the tensor core: groups of eight rows are 4096 bytes apart.
DEV unsigned long long described(unsigned at)
{
    return (unsigned long long)((at >> 4) & 0x3fff) | 1ull << 16 | (4096ull >> 4) << 32 | 1ull << 62;
}
#define FOUR(d, k) "+f"(d[k]), "+f"(d[k + 1]), "+f"(d[k + 2]), "+f"(d[k + 3])
// d [64 outputs,N rows] (+)= a [64,16] b [16,N]; a row of b lies as `Tile` says.
DEV void multiply_add(float (&d)[8], const uint4 &a, unsigned b, bool add)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %13, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 "
                 "{%0,%1,%2,%3,%4,%5,%6,%7}, {%8,%9,%10,%11}, %12, p, 1, 1, 0;\n}"
                 : FOUR(d, 0), FOUR(d, 4)
                 : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(described(b)), "r"((int)add));
}
DEV void multiply_add(float (&d)[24], const uint4 &a, unsigned b, bool add)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %29, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n48k16.f32.f16.f16 "
                 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                 "%16,%17,%18,%19,%20,%21,%22,%23}, {%24,%25,%26,%27}, %28, p, 1, 1, 0;\n}"
                 : FOUR(d, 0), FOUR(d, 4), FOUR(d, 8), FOUR(d, 12), FOUR(d, 16), FOUR(d, 20)
                 : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(described(b)), "r"((int)add));
}
DEV void multiply_add(float (&d)[40], const uint4 &a, unsigned b, bool add)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %45, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n80k16.f32.f16.f16 "
                 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
                 "%32,%33,%34,%35,%36,%37,%38,%39}, {%40,%41,%42,%43}, %44, p, 1, 1, 0;\n}"
                 : FOUR(d, 0), FOUR(d, 4), FOUR(d, 8), FOUR(d, 12), FOUR(d, 16), FOUR(d, 20),
                   FOUR(d, 24), FOUR(d, 28), FOUR(d, 32), FOUR(d, 36)
                 : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(described(b)), "r"((int)add));
}
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
            asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
            multiply_add(made, w[0], small, false);
            multiply_add(made, w[1], big, true);
            multiply_add(made, w[0], big, true);
            asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
            for (int k = 0; k < EACH; k++) asm volatile("" : "+f"(made[k])::"memory"); // not read before it is there
#pragma unroll
            for (int k = 0; k < EACH; k++) sums[k] += made[k];
            if (FIRST > 0 || first + AHEAD < 8) weights.follow(turn);
        }
        weights.next += AHEAD * STEP;
    }
}
#endif
