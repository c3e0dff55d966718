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
#include "warpgroup_products.cuh"
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
// The one arrival of a phase, which ends when this number of bytes has arrived.
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
// d [64 rows,N] (+)= a [64,16] bᵀ; b [N,16] begins at an address of shared memory.
template <int N> DEV void multiply(float (&d)[N], const unsigned *a, unsigned b, bool add)
{
    multiply_add(d, make_uint4(a[0], a[1], a[2], a[3]), described(b, 1024), add);
}
#endif
