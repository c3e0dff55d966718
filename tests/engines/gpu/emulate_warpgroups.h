// What edge_maps.cu uses of the machine, on one core: on top of emulate_cuda.h, the barriers that count bytes, copies
// to all blocks of a cluster, and products of warpgroups. Copies and products are done at once.
#include "emulate_cuda.h"
#define MEMBER inline
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
struct ByteBarrier {
    unsigned completed;
    short arrivals, pending;
    int bytes;
    int unused;
};
static_assert(sizeof(ByteBarrier) == BARRIER, "barrier");
static inline char *memory_of(int block) { return (char *)all_blocks[block].memory; }
static inline int first_block() { return current->block->index / 2 * 2; }
static inline ByteBarrier &barrier_of(unsigned at, int rank)
{
    return *(ByteBarrier *)(memory_of(first_block() + rank) + at);
}
static inline void close_phase(ByteBarrier &b)
{
    if (b.pending == 0 && b.bytes == 0) b.completed++, b.pending = b.arrivals;
}
static inline float *shared_floats(unsigned offset) { return (float *)((char *)current->block->memory + offset); }
static Place cluster_places[1024];
static inline void meet_cluster() { meet(cluster_places[first_block() / 2], 2 * num_threads); }
static inline void meet_warp() {}
static inline void prepare_barrier(unsigned at, int arrivals)
{
    barrier_of(at, block_rank()) = {0, (short)arrivals, (short)arrivals, 0, 0};
}
static inline void show_barriers() {}
static inline unsigned shared_start() { return 0; }
static inline void wait_for(unsigned at, unsigned parity)
{
    ByteBarrier &b = barrier_of(at, block_rank());
    while (b.completed % 2 == parity) yield_until(&b.completed, b.completed, 0);
}
static inline void expect(unsigned at, int bytes)
{
    ByteBarrier &b = barrier_of(at, block_rank());
    b.bytes += bytes, b.pending--;
    close_phase(b);
}
static inline unsigned shared_start_of(unsigned rank) { return rank << 28; }
static inline void arrive_at(unsigned at)
{
    ByteBarrier &b = barrier_of(at & 0xfffffff, at >> 28);
    if (b.pending <= 0) abort();
    b.pending--;
    close_phase(b);
}
static inline void copy_to_all(unsigned to, const char *from, int bytes, unsigned at)
{
    for (int rank = 0; rank < 2; rank++) {
        memcpy(memory_of(first_block() + rank) + to, from, bytes);
        ByteBarrier &b = barrier_of(at, rank);
        b.bytes -= bytes;
        close_phase(b);
    }
}
template <int> static inline void take_registers() {}
template <int> static inline void leave_registers() {}
static inline float power_of_2(float x) { return exp2f(x); }
static inline float reciprocal(float x) { return 1.0f / x; }
template <int N> static inline void hold(float (&)[N]) {}
template <int N> static inline void hold(unsigned (&)[N]) {}
static inline void begin_products() {}
static inline void end_products() {}
template <int> static inline void wait_for_products() {}

struct Group {
    Place place;
    unsigned a[2][128][4];
    unsigned turn[128];
};
static Group all_groups[64];
// One of two rows (lane / 4 + 8 i) and all 16 columns of a warp's part of the left matrix.
static inline void left_row(const unsigned (&a)[128][4], int thread, int i, float (&x)[16])
{
    for (int t = 0; t < 4; t++)
        for (int j = 0; j < 2; j++) {
            const float2 pair = unpack_halves(a[thread / 4 * 4 + t][2 * j + i]);
            x[8 * j + 2 * t] = pair.x, x[8 * j + 2 * t + 1] = pair.y;
        }
}
template <int N> static inline void multiply(float (&d)[N], const unsigned *a, unsigned b, bool add)
{
    const int thread = current->tid % 128;
    Group &group = all_groups[current->block->index * 2 + current->tid / 128];
    auto &left = group.a[group.turn[thread]++ % 2];
    memcpy(left[thread], a, 16);
    meet(group.place, 128);
    float x[2][16];
    left_row(left, thread, 0, x[0]), left_row(left, thread, 1, x[1]);
    const char *memory = memory_of(current->block->index);
    for (int n = 0; n < N / 4; n++) // of 8 columns of the result, two of this thread
        for (int j = 0; j < 2; j++) {
            float sum[2] = {};
            for (int k = 0; k < 16; k += 2) {
                unsigned at = b + (8 * n + thread % 4 * 2 + j) * 128 + 2 * k;
                at ^= (at >> 7 & 7) << 4;
                unsigned pair;
                memcpy(&pair, memory + at, 4);
                const float2 w = unpack_halves(pair);
                for (int i = 0; i < 2; i++) sum[i] += x[i][k] * w.x + x[i][k + 1] * w.y;
            }
            for (int i = 0; i < 2; i++) {
                float &to = d[4 * n + 2 * i + j];
                to = (add ? to : 0.0f) + sum[i];
            }
        }
}
