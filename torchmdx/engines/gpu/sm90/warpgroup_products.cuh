// Products of warpgroups on tensor cores (wgmma), of halves of which two make a float: what atom_tiles.cu and edge_maps.cu
// have in common. For GPUs only: an emulation has functions of its own for what it needs. Who includes it defines DEV.
#pragma once

// Two floats, rounded to half precision, in one word.
DEV unsigned pack_halves(float low, float high)
{
    unsigned v;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(high), "f"(low));
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
// A right factor in shared memory: rows of 128 bytes whose pieces of 16 are swizzled, and `apart` bytes from eight of
// them to the next eight.
DEV unsigned long long described(unsigned at, unsigned apart)
{
    return (unsigned long long)((at >> 4) & 0x3fff) | 1ull << 16 | (unsigned long long)(apart >> 4) << 32 | 1ull << 62;
}
#define FOUR(d, k) "+f"(d[k]), "+f"(d[k + 1]), "+f"(d[k + 2]), "+f"(d[k + 3])
#define SIXTEEN(d, k) FOUR(d, k), FOUR(d, k + 4), FOUR(d, k + 8), FOUR(d, k + 12)
// d [64,N] (+)= a [64,16] bᵀ, for `described` b [N,16]; a thread has N / 2 numbers of d.
DEV void multiply_add(float (&d)[8], const uint4 &a, unsigned long long b, bool add)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %13, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 "
                 "{%0,%1,%2,%3,%4,%5,%6,%7}, "
                 "{%8,%9,%10,%11}, %12, p, 1, 1, 0;\n}"
                 : FOUR(d, 0), FOUR(d, 4)
                 : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b), "r"((int)add));
}
DEV void multiply_add(float (&d)[24], const uint4 &a, unsigned long long b, bool add)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %29, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n48k16.f32.f16.f16 "
                 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                 "%16,%17,%18,%19,%20,%21,%22,%23}, "
                 "{%24,%25,%26,%27}, %28, p, 1, 1, 0;\n}"
                 : SIXTEEN(d, 0), FOUR(d, 16), FOUR(d, 20)
                 : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b), "r"((int)add));
}
DEV void multiply_add(float (&d)[32], const uint4 &a, unsigned long long b, bool add)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
                 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, "
                 "{%32,%33,%34,%35}, %36, p, 1, 1, 0;\n}"
                 : SIXTEEN(d, 0), SIXTEEN(d, 16)
                 : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b), "r"((int)add));
}
DEV void multiply_add(float (&d)[40], const uint4 &a, unsigned long long b, bool add)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %45, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n80k16.f32.f16.f16 "
                 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
                 "%32,%33,%34,%35,%36,%37,%38,%39}, "
                 "{%40,%41,%42,%43}, %44, p, 1, 1, 0;\n}"
                 : SIXTEEN(d, 0), SIXTEEN(d, 16), FOUR(d, 32), FOUR(d, 36)
                 : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b), "r"((int)add));
}
DEV void multiply_add(float (&d)[64], const uint4 &a, unsigned long long b, bool add)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
                 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
                 "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
                 "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, "
                 "{%64,%65,%66,%67}, %68, p, 1, 1, 0;\n}"
                 : SIXTEEN(d, 0), SIXTEEN(d, 16), SIXTEEN(d, 32), SIXTEEN(d, 48)
                 : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b), "r"((int)add));
}
