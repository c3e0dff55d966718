// The parts of CUDA that few_atoms.cu uses, on one core: every thread is a fiber, blocks wait for each other as they do
// on a GPU. Slow, and exact about who has stored what when.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>
#include <sys/mman.h>
using std::max;
using std::min;
#define DEV static inline
#define __ldg(p) (*(p))
#define __ldcg(p) (*(p))
#define __stcg(p, v) (*(p) = (v))
struct float4 {
    float x, y, z, w;
};
struct float2 {
    float x, y;
};
struct uint2 {
    unsigned x, y;
};
struct uint4 {
    unsigned x, y, z, w;
};
static inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static const int MOST_VALUES = 6;
struct Warp {
    unsigned count = 0, turn = 0;
    double value[2][MOST_VALUES][32];
};
struct Place {
    unsigned count = 0, turn = 0;
};
struct BlockState {
    Place sync;
    long received[2] = {}, expected[2] = {};
    unsigned opened[2] = {}, completed[2] = {};
    std::vector<Warp> warps;
    float *memory;
    int index;
    unsigned launch = 0, halt = 0;
    bool any = false;
};
struct ClusterState {
    unsigned arrived = 0, turn = 0;
};
struct Fiber {
    void *stack;
    const volatile unsigned *wait;
    unsigned until;
    int mode;
    bool done;
    int tid;
    unsigned arrivals;
    BlockState *block;
    ClusterState *cluster;
};
static Fiber *current;
static void *scheduler_stack;
static unsigned num_blocks, num_threads;
static size_t memory_floats;
static int cluster_size;
static BlockState *all_blocks;
#define threadIdx (Dim{current->tid})
#define blockIdx (Dim{current->block->index})
#define gridDim (Dim{(int)num_blocks})
struct Dim {
    int x;
};
extern "C" void switch_stack(void **save, void *to);
asm(R"(
.text
.globl switch_stack
.type switch_stack,@function
switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
)");
static __attribute__((noinline)) void yield_until(const volatile unsigned *at, unsigned value,
                                                  int mode) // 0: differs, 1: at least
{
    Fiber *f = current;
    f->wait = at, f->until = value, f->mode = mode;
    switch_stack(&f->stack, scheduler_stack);
    asm volatile("" ::: "memory");
}
static inline void meet(Place &place, unsigned members)
{
    unsigned turn = place.turn;
    if (++place.count == members) {
        place.count = 0;
        place.turn++;
    } else
        yield_until(&place.turn, turn, 0);
}
static inline void __syncthreads() { meet(current->block->sync, num_threads); }
static inline bool any_in_block(bool v)
{
    bool &any = current->block->any;
    any = any || v;
    __syncthreads();
    const bool found = any;
    __syncthreads();
    any = false;
    __syncthreads();
    return found;
}
static inline void leave_step()
{
    ClusterState &c = *current->cluster;
    current->arrivals++;
    if (++c.arrived == cluster_size * num_threads) c.arrived = 0, c.turn++;
}
static inline void prepare_exchanges() { leave_step(); }
static inline void all_prepared()
{
    ClusterState &c = *current->cluster;
    if (c.turn < current->arrivals) yield_until(&c.turn, current->arrivals, 1);
}
static inline void wait_for_cluster(int turn)
{
    BlockState &b = *current->block;
    if (b.completed[turn % 2] < turn / 2 + 1) yield_until(&b.completed[turn % 2], turn / 2 + 1, 1);
}
// What all lanes of the warp give, [count][32], until the warp's next but one.
static const double (*all_values(const double *given, int count))[32]
{
    Warp &w = current->block->warps[current->tid / 32];
    unsigned turn = w.turn;
    auto &slot = w.value[turn % 2];
    for (int k = 0; k < count; k++) slot[k][current->tid % 32] = given[k];
    if (++w.count == 32) {
        w.count = 0;
        w.turn++;
    } else
        yield_until(&w.turn, turn, 0);
    return slot;
}
static const double *all_values(double v) { return all_values(&v, 1)[0]; }
template <class V> static V exchange_value(V v, int mask) { return (V)all_values(v)[current->tid % 32 ^ mask]; }
static inline float exchange(float v, int mask) { return exchange_value(v, mask); }
static inline double exchange(double v, int mask) { return exchange_value(v, mask); }
static inline int exchange(int v, int mask) { return exchange_value(v, mask); }
template <class V> static V from_lane(V v, int lane) { return (V)all_values(v)[lane]; }
static inline unsigned ballot(bool v)
{
    const double *values = all_values(v);
    unsigned all = 0;
    for (int lane = 0; lane < 32; lane++) all |= (unsigned)values[lane] << lane;
    return all;
}
#define __popcll __builtin_popcountll
#define __popc __builtin_popcount
static inline float *shared_base() { return current->block->memory; }
static inline int block_rank() { return current->block->index % cluster_size; }
static inline void close_exchange(BlockState &b, int which)
{
    if (b.opened[which] == b.completed[which] + 1 && b.received[which] == b.expected[which]) b.completed[which]++;
}
struct Remote {
    int rank;
};
static inline Remote remote_of(int rank) { return {rank}; }
static inline void push4(const Remote &r, const float *to, float4 v, int turn)
{
    const int rank = r.rank;
    int here = current->block->index;
    size_t offset = to - current->block->memory;
    if (offset + 4 > memory_floats) abort();
    BlockState &there = all_blocks[here / cluster_size * cluster_size + rank];
    *(float4 *)(there.memory + offset) = v;
    there.received[turn % 2] += 16;
    close_exchange(there, turn % 2);
}
static inline void before_push() {}
static inline void push_all(const Remote &r, const float *to, const float *from, int bytes, int turn)
{
    for (int k = 0; k < bytes / 16; k++) push4(r, to + 4 * k, *(const float4 *)(from + 4 * k), turn);
}
static inline void expect(int turn, int bytes)
{
    BlockState &b = *current->block;
    b.expected[turn % 2] += bytes, b.opened[turn % 2]++;
    close_exchange(b, turn % 2);
}
static inline float4 weights4(const float4 *p) { return *p; }
static inline void tell(float4 *to, float4 v) { *to = v; }
static inline float4 look(const float4 *at) { return *at; }
static inline void pause(const float4 *at, unsigned launch)
{
    const unsigned *flag = (const unsigned *)&at->w;
    if (*flag < launch) yield_until(flag, launch, 1);
}
static inline unsigned long long count_up(unsigned long long *counter) { return (*counter)++; }
static inline void publish() {}
static inline unsigned long long look_at(const unsigned long long *counter, unsigned long long value)
{
    if (*counter < value) yield_until((const unsigned *)counter, value, 1);
    return *counter;
}
static inline unsigned &shared_launch() { return current->block->launch; }
static inline unsigned &shared_halt() { return current->block->halt; }
static inline void tell_halt(int rank)
{
    all_blocks[current->block->index / cluster_size * cluster_size + rank].halt = 1;
}
static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static inline void add_to(int *at, int v) { *at += v; }
static inline double rsqrt(double x) { return 1.0 / sqrt(x); }
static inline float cospif(float x) { return cosf((float)M_PI * x); }
static inline float sinpif(float x) { return sinf((float)M_PI * x); }
static inline double cospi(double x) { return cos(M_PI * x); }
static inline void sincospi(double x, double *sine, double *cosine) { *sine = sin(M_PI * x), *cosine = cos(M_PI * x); }
template <class To, class From> static To same_bits(From from)
{
    static_assert(sizeof(To) == sizeof(From), "sizes");
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}
static inline float __uint_as_float(unsigned v) { return same_bits<float>(v); }
static inline unsigned __float_as_uint(float v) { return same_bits<unsigned>(v); }
static inline float rounded_tf32(float x) { return __uint_as_float((__float_as_uint(x) + 0x1000) & 0xffffe000); }
static inline float cut_tf32(float x) { return __uint_as_float(__float_as_uint(x) & 0xffffe000); }
static inline void multiply_add(float (&sum)[4], const float (&a)[4], const float (&b)[2])
{
    const int i = current->tid % 32 / 4, j = current->tid % 4;
    float left[2][8], right[2][8]; // of rows i and i + 8; of columns 2 j and 2 j + 1
    const double given[MOST_VALUES] = {cut_tf32(a[0]), cut_tf32(a[1]), cut_tf32(a[2]),
                                       cut_tf32(a[3]), cut_tf32(b[0]), cut_tf32(b[1])};
    const auto all = all_values(given, MOST_VALUES);
    for (int m = 0; m < 4; m++) {
        for (int k = 0; k < 4; k++) left[k % 2][m + 4 * (k / 2)] = all[k][4 * i + m];
        for (int k = 0; k < 2; k++)
            for (int n = 0; n < 2; n++) right[n][m + 4 * k] = all[4 + k][4 * (2 * j + n) + m];
    }
    for (int m = 0; m < 8; m++)
        for (int n = 0; n < 4; n++) sum[n] += left[n / 2][m] * right[n % 2][m];
}
static inline unsigned pack_halves(float low, float high)
{
    const _Float16 pair[2] = {(_Float16)low, (_Float16)high};
    unsigned v;
    memcpy(&v, pair, sizeof v);
    return v;
}
static inline float2 unpack_halves(unsigned v)
{
    _Float16 pair[2];
    memcpy(pair, &v, sizeof v);
    return {(float)pair[0], (float)pair[1]};
}
static inline float __int_as_float(int v) { return same_bits<float>(v); }
static inline int __float_as_int(float v) { return same_bits<int>(v); }
static inline int __double2loint(double v) { return (int)same_bits<long long>(v); }
static inline int __double2hiint(double v) { return (int)(same_bits<long long>(v) >> 32); }
static inline double __hiloint2double(int high, int low)
{
    return same_bits<double>(((long long)high << 32) | (unsigned)low);
}
static void (*body)();
static void start()
{
    body();
    current->done = true;
    switch_stack(&current->stack, scheduler_stack);
    abort();
}
static void run_grid(int blocks, int threads, int size, size_t shared_bytes, void (*function)())
{
    const size_t stack = 32768 + 17 * 64; // not a power of two, so that their tops share no part of the cache
    num_blocks = blocks, num_threads = threads, cluster_size = size, body = function, memory_floats = shared_bytes / 4;
    std::vector<BlockState> states(blocks);
    std::vector<ClusterState> clusters(blocks / size);
    std::vector<Fiber> fibers((size_t)blocks * threads);
    all_blocks = states.data();
    char *stacks = (char *)mmap(0, stack * fibers.size(), PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    for (int b = 0; b < blocks; b++) {
        states[b].warps.resize((threads + 31) / 32);
        states[b].memory = (float *)aligned_alloc(64, (shared_bytes + 63) / 64 * 64);
        for (size_t k = 0; k < memory_floats; k++) states[b].memory[k] = NAN;
        states[b].index = b;
        for (int t = 0; t < threads; t++) {
            Fiber &f = fibers[(size_t)b * threads + t];
            memset((void *)&f, 0, sizeof f);
            f.tid = t, f.block = &states[b], f.cluster = &clusters[b / size];
            void **top = (void **)(stacks + stack * ((size_t)b * threads + t + 1) - 64);
            *--top = 0;
            *--top = (void *)start;
            for (int k = 0; k < 6; k++) *--top = 0;
            f.stack = top;
        }
    }
    size_t left = fibers.size();
    // With a seed, blocks and warps are run in random order and stop at random places, to find missing waits.
    const char *seed = getenv("EMULATED_ORDER");
    if (seed) srand(atoi(seed));
    // "first,count": these blocks run ahead of the others as far as they can, to find what they overwrite too early.
    const char *ahead = getenv("EMULATED_AHEAD");
    int first = 0, count = blocks;
    if (ahead) sscanf(ahead, "%d,%d", &first, &count);
    while (left) {
        bool moved = false;
        for (int pass = 0; pass < blocks; pass++) {
            const int b = seed ? rand() % blocks : (pass + first) % blocks;
            if (pass == count && moved) break;
            for (bool again = true; again;) {
                again = false;
                const int turned = seed ? rand() % (threads / 32) * 32 : 0, share = seed ? rand() % 3 : 0;
                for (int u = 0; u < threads; u++) {
                    const int t = (u + turned) % threads;
                    if (share && u / 32 % 3 == share) continue;
                    Fiber &f = fibers[(size_t)b * threads + t];
                    if (f.done || (f.wait && (f.mode ? *f.wait < f.until : *f.wait == f.until))) continue;
                    f.wait = 0, current = &f;
                    switch_stack(&scheduler_stack, f.stack);
                    again = moved = true;
                    left -= f.done;
                }
                if (share) again = false;
            }
        }
        if (!moved && !seed) {
            fprintf(stderr, "deadlock: %zu threads wait\n", left);
            for (auto &f : fibers)
                if (!f.done) {
                    fprintf(stderr, "block %d thread %d\n", f.block->index, f.tid);
                    break;
                }
            abort();
        }
    }
    for (auto &s : states) free(s.memory);
    munmap(stacks, stack * fibers.size());
}
