// The nine components of an atom in a warp, four channels a lane.
#pragma once
#include "one_launch_nine.cuh"

enum { C = 128 };

struct Quad {
    N9 of[4]; // of four neighbouring channels
};

// Where a warp is: an atom, its row in a tile if there is one, and four channels of each lane.
struct Spot {
    long long atom;
    int row, lane;
};

template <class Map> DEV void each_channel(Map map)
{
#pragma unroll
    for (int c = 0; c < 4; c++) map(c);
}

DEV void set4(Quad &x, int k, float4 v) { x.of[0].v[k] = v.x, x.of[1].v[k] = v.y, x.of[2].v[k] = v.z, x.of[3].v[k] = v.w; }
DEV float4 get4(const Quad &x, int k) { return make_float4(x.of[0].v[k], x.of[1].v[k], x.of[2].v[k], x.of[3].v[k]); }

DEV Quad read_global(const float *from, const Spot &at)
{
    Quad x;
#pragma unroll
    for (int k = 0; k < 9; k++) set4(x, k, *(const float4 *)(from + (at.atom * 9 + k) * C + 4 * at.lane));
    return x;
}
DEV void write_global(float *to, const Spot &at, const Quad &x)
{
#pragma unroll
    for (int k = 0; k < 9; k++) *(float4 *)(to + (at.atom * 9 + k) * C + 4 * at.lane) = get4(x, k);
}
template <int COUNT> DEV void read_channels(float (&x)[COUNT][4], const float *from, const Spot &at)
{
#pragma unroll
    for (int k = 0; k < COUNT; k++) {
        const float4 v = *(const float4 *)(from + (at.atom * COUNT + k) * C + 4 * at.lane);
        x[k][0] = v.x, x[k][1] = v.y, x[k][2] = v.z, x[k][3] = v.w;
    }
}
template <int COUNT> DEV void write_channels(float *to, const Spot &at, const float (&x)[COUNT][4])
{
#pragma unroll
    for (int k = 0; k < COUNT; k++)
        *(float4 *)(to + (at.atom * COUNT + k) * C + 4 * at.lane) = make_float4(x[k][0], x[k][1], x[k][2], x[k][3]);
}
DEV float sum_of_warp(float v)
{
#pragma unroll
    for (int mask = 16; mask; mask /= 2) v += exchange(v, mask);
    return v;
}

// How many atoms, the first ones: of a domain a number on the device, as its graphs stay while it changes.
template <class P> DEV int count_of(const P &p, const int *count) { return count ? __ldg(count) : p.num_atoms; }

// 1 + q/10 of the system of an atom.
template <class P> DEV float charge_factor(const P &p, const Spot &at)
{
    const long long system = p.system[at.atom];
    return 1.0f + 0.1f * (p.wide_charge ? (float)((const double *)p.charge)[system] : ((const float *)p.charge)[system]);
}
