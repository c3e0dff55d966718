// What the machine offers to edge_maps.cu: copies into the shared memory of both blocks of a cluster, barriers that
// count their bytes, and products of warpgroups on tensor cores. EMULATED: by functions of the same names on a CPU.
#pragma once

#define ROWS 128                 // of a block: 64 for each of two warpgroups
#define GROUPS 2                 // warpgroups that multiply
#define THREADS (128 * (GROUPS + 1)) // the last warpgroup copies
#define STAGE 32768              // bytes of matrices copied at a time, half of them by each block of a cluster
#define CLUSTER 2                // blocks
#define BARRIER 16               // bytes of a barrier
#define BARRIERS 256             // bytes of all of them, behind the stages

#ifdef EMULATED
#include "emulate_warpgroups.h"
#else
#define DEV static __device__ __forceinline__
#define MEMBER __device__ __forceinline__
extern __shared__ float4 shared_memory[];
DEV unsigned shared_start() { return (unsigned)__cvta_generic_to_shared(shared_memory); }
DEV float *shared_floats(unsigned offset) { return (float *)((char *)shared_memory + offset); }
DEV int block_rank()
{
    unsigned r;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return r;
}
DEV void meet_cluster()
{
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}
DEV void prepare_barrier(unsigned at, int arrivals)
{
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(at), "r"(arrivals));
}
DEV void show_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
// Returns when the phase of this parity is over.
DEV void wait_for(unsigned barrier, unsigned parity)
{
    asm volatile(
        "{\n.reg .pred done;\nAGAIN%=:\nmbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n@!done bra AGAIN%=;\n}" ::
            "r"(barrier),
        "r"(parity)
        : "memory");
}
// The one arrival of a phase, which ends when so many bytes have come.
DEV void expect(unsigned barrier, int bytes)
{
    asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.expect_tx.shared.b64 state, [%0], %1;\n}" ::"r"(barrier),
                 "r"(bytes)
                 : "memory");
}
// Where shared memory begins in a block of the cluster.
DEV unsigned shared_start_of(unsigned rank)
{
    unsigned r;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(shared_start()), "r"(rank));
    return r;
}
// An arrival at the barrier of a block of the cluster, by a thread that has only read what the barrier guards: a release
// in the scope of the cluster would wait until all stores of the thread are visible, some thousand clocks.
DEV void arrive_at(unsigned barrier)
{
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// From global memory to the same place in all blocks of the cluster; counted by the barriers of all.
DEV void copy_to_all(unsigned to, const char *from, int bytes, unsigned barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
                 "[%0], [%1], %2, [%3], %4;" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier), "h"((unsigned short)((1 << CLUSTER) - 1))
                 : "memory");
}
template <int REGISTERS> DEV void take_registers()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
template <int REGISTERS> DEV void leave_registers()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
DEV float exchange(float v, int mask) { return __shfl_xor_sync(0xffffffffu, v, mask); }
DEV void meet_warp() { __syncwarp(); }
DEV float power_of_2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
DEV float reciprocal(float x)
{
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
// Two floats, rounded to half precision.
DEV unsigned halves(float low, float high)
{
    unsigned r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}
DEV void as_floats(unsigned v, float &low, float &high)
{
    asm("{\n.reg .b16 l, h;\nmov.b32 {l, h}, %2;\ncvt.f32.f16 %0, l;\ncvt.f32.f16 %1, h;\n}"
        : "=f"(low), "=f"(high)
        : "r"(v));
}
// Products are under way between `begin_products` and `wait_for_products`; the compiler must not move registers then.
template <int N> DEV void hold(float (&x)[N])
{
#pragma unroll
    for (int k = 0; k < N; k++) asm volatile("" : "+f"(x[k])::"memory");
}
template <int N> DEV void hold(unsigned (&x)[N])
{
#pragma unroll
    for (int k = 0; k < N; k++) asm volatile("" : "+r"(x[k])::"memory");
}
DEV void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEV void end_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// All but the last PENDING groups of products are done.
template <int PENDING> DEV void wait_for_products()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}
#define FOUR(d, k) "+f"(d[k]), "+f"(d[k + 1]), "+f"(d[k + 2]), "+f"(d[k + 3])
#define SIXTEEN(d, k) FOUR(d, k), FOUR(d, k + 4), FOUR(d, k + 8), FOUR(d, k + 12)
// d [64 rows,N] (+)= a [64,16] bᵀ; b [N,16] begins at an address of shared memory, in rows of 128 bytes whose pieces of
// 16 are swizzled.
DEV unsigned long long described(unsigned at)
{
    return (unsigned long long)((at >> 4) & 0x3fff) | 1ull << 16 | (1024ull >> 4) << 32 | 1ull << 62;
}
DEV void multiply(float (&d)[32], const unsigned *a, unsigned b, bool add)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
                 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, "
                 "{%32,%33,%34,%35}, %36, p, 1, 1, 0;\n}"
                 : SIXTEEN(d, 0), SIXTEEN(d, 16)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(described(b)), "r"((int)add));
}
DEV void multiply(float (&d)[64], const unsigned *a, unsigned b, bool add)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
                 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
                 "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
                 "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, "
                 "{%64,%65,%66,%67}, %68, p, 1, 1, 0;\n}"
                 : SIXTEEN(d, 0), SIXTEEN(d, 16), SIXTEEN(d, 32), SIXTEEN(d, 48)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(described(b)), "r"((int)add));
}
#endif
