// What the machine offers to one_launch.cu: exchanges within a cluster, waits between clusters, shuffles. EMULATED: by
// functions of the same names on a CPU.
#pragma once

#ifdef EMULATED
#include "emulate_cuda.h"
#define MEMBER inline
#define APART static
#else
#define DEV static __device__ __forceinline__
#define MEMBER __device__ __forceinline__
#define APART static __device__ __noinline__
#endif

#ifndef EMULATED
extern __shared__ float4 shared_memory[];
DEV float *shared_base() { return (float *)shared_memory; }
DEV int block_rank()
{
    unsigned r;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return (int)r;
}
// Two barriers in shared memory count the bytes that the cluster stores there; exchanges take turns in them.
struct Exchanges {
    unsigned long long barrier[2];
};
__shared__ Exchanges exchanges;
__shared__ unsigned launch_number, halt_word;
DEV unsigned &shared_launch() { return launch_number; }
DEV unsigned &shared_halt() { return halt_word; }
DEV unsigned shared_address(const void *p) { return (unsigned)__cvta_generic_to_shared(p); }
DEV void prepare_exchanges()
{
    if (threadIdx.x == 0) {
        halt_word = 0;
        for (int k = 0; k < 2; k++)
            asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(shared_address(exchanges.barrier + k)));
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
DEV void all_prepared() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
// The end of a step that another follows: what `all_prepared` waits for.
DEV void leave_step() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
// Before `leave_step`: tells a block of the cluster to halt.
DEV void tell_halt(int rank)
{
    unsigned at;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(shared_address(&halt_word)), "r"(rank));
    asm volatile("st.shared::cluster.u32 [%0], 1;" ::"r"(at) : "memory");
}
DEV bool any_in_block(bool v) { return __syncthreads_or(v); }
DEV void expect(int turn, int bytes)
{
    asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.expect_tx.shared.b64 state, [%0], %1;\n}" ::"r"(
                     shared_address(exchanges.barrier + turn % 2)),
                 "r"(bytes)
                 : "memory");
}
DEV void wait_for_cluster(int turn)
{
    const unsigned barrier = shared_address(exchanges.barrier + turn % 2), parity = turn / 2 % 2;
    asm volatile(
        "{\n.reg .pred done;\nAGAIN%=:\nmbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n@!done bra AGAIN%=;\n}" ::
            "r"(barrier),
        "r"(parity)
        : "memory");
}
// Shared memory and barriers of a block of the cluster, as this block addresses them.
struct Remote {
    unsigned memory, barrier[2];
};
DEV Remote remote_of(int rank)
{
    Remote r;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r.memory) : "r"(shared_address(shared_base())), "r"(rank));
#pragma unroll
    for (int k = 0; k < 2; k++)
        asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
                     : "=r"(r.barrier[k])
                     : "r"(shared_address(exchanges.barrier + k)), "r"(rank));
    return r;
}
// To the place that `to` is of this block's memory.
DEV void push4(const Remote &r, const float *to, float4 v, int turn)
{
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1,%2,%3,%4}, [%5];" ::"r"(
                     r.memory + 4 * (unsigned)(to - shared_base())),
                 "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(turn % 2 ? r.barrier[1] : r.barrier[0])
                 : "memory");
}
// Before what a thread has stored to shared memory is copied or overwritten by `push_all`, with a barrier between.
DEV void before_push() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// Copies this block's memory at `from` to the place that `to` is of this block's memory. It may be read until the other
// block has been heard of in a later exchange.
DEV void push_all(const Remote &r, const float *to, const float *from, int bytes, int turn)
{
    asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     r.memory + 4 * (unsigned)(to - shared_base())),
                 "r"(shared_address(from)), "r"(bytes), "r"(turn % 2 ? r.barrier[1] : r.barrier[0])
                 : "memory");
}
// Weights are read once a step: they must not replace in L1 what is read again.
DEV float4 weights4(const float4 *p)
{
    float4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.f32 {%0,%1,%2,%3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "l"(p));
    return v;
}
// 16 bytes that no other thread sees in part.
DEV void tell(float4 *to, float4 v)
{
    asm volatile("{\n.reg .b64 low, high;\n.reg .b128 all;\nmov.b64 low, {%1,%2};\nmov.b64 high, {%3,%4};\n"
                 "mov.b128 all, {low, high};\nst.relaxed.gpu.global.b128 [%0], all;\n}" ::"l"(to),
                 "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
                 : "memory");
}
DEV float4 look(const float4 *at)
{
    float4 v;
    asm volatile("{\n.reg .b64 low, high;\n.reg .b128 all;\nld.relaxed.gpu.global.b128 all, [%4];\n"
                 "mov.b128 {low, high}, all;\nmov.b64 {%0,%1}, low;\nmov.b64 {%2,%3}, high;\n}"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "l"(at)
                 : "memory");
    return v;
}
DEV void pause(const float4 *, unsigned) {} // an emulation lets other threads run
DEV float rounded_tf32(float x) { return __uint_as_float((__float_as_uint(x) + 0x1000) & 0xffffe000); }
// sum [16][8] += a [16][8] b [8][8] by tensor cores, numbers of a warp as in the fragments of mma.sync.
DEV void multiply_add(float (&sum)[4], const float (&a)[4], const float (&b)[2])
{
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])),
          "r"(__float_as_uint(a[3])), "r"(__float_as_uint(b[0])), "r"(__float_as_uint(b[1])));
}
// What a block has stored, by all its threads before a barrier, can be read by those that see what it does next.
DEV void publish() { __threadfence(); }
// A counter, of which an emulation waits until it has a value.
DEV unsigned long long look_at(const unsigned long long *counter, unsigned long long)
{
    unsigned long long v;
    asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(counter) : "memory");
    return v;
}
DEV void add_to(int *at, int v) { atomicAdd(at, v); }
DEV unsigned long long count_up(unsigned long long *counter) { return atomicAdd(counter, 1ull); }
DEV unsigned ballot(bool v) { return __ballot_sync(0xffffffffu, v); }
template <class V> DEV V from_lane(V v, int lane) { return __shfl_sync(0xffffffffu, v, lane); }
DEV float exchange(float v, int mask) { return __shfl_xor_sync(0xffffffffu, v, mask); }
DEV double exchange(double v, int mask) { return __shfl_xor_sync(0xffffffffu, v, mask); }
DEV int exchange(int v, int mask) { return __shfl_xor_sync(0xffffffffu, v, mask); }
#endif
