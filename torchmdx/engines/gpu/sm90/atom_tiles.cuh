// Tiles of atoms: what a warp does with the nine components of one atom, four channels a lane.
#pragma once
#include "atom_tiles_machine.cuh"

// [] in the comments are shapes; tensors that a kernel does not name are not read.
struct Params {
    const void *charge;
    const long long *system;
    const uint4 *first, *second;  // matrices of the first and the second product
    const float *scale, *offset;  // of the LayerNorm
    const float *sums;            // [N,9,C] what the first product takes, if it is read
    const float *x, *inverse;     // X̂ and 1/(|X|²+1)
    const float *y;               // [N,9,C]
    float *d, *m;                 // [N,9,C] D, and M; then its gradient
    float *gradient;              // [N,9,C] in X
    float *mixed, *gate, *norms;  // [N,9,C], [N,3,C], [N,3,C]
    float *out, *out_inverse;     // X̂ of the next layer
    float *result;                // [N,9,C] of the last product
    const int *count, *received;  // of a domain: see `count_of` and `read_received`
    float first_unit, second_unit, epsilon;
    int num_atoms, wide_charge;
};

// Runs a map of a spot on the atoms of this warp.
template <class Map> DEV void each_atom(const Params &p, Map map)
{
    const int first = blockIdx.x * ATOMS, count = count_of(p, p.count), lane = threadIdx.x % 32;
#pragma unroll 1
    for (int row = threadIdx.x / 32; row < ATOMS; row += WARPS)
        if (first + row < count) map(Spot{first + row, row, lane});
}

// The gradient in X from after a layer; zero for atoms that the layer did not update.
DEV Quad read_received(const Params &p, const Spot &at)
{
    if (at.atom < count_of(p, p.received)) return read_global(p.gradient, at);
    return Quad{};
}
// Floats of the tile, times a unit.
DEV Quad read_tile(const Tile &tile, const Spot &at, float unit)
{
    Quad x;
#pragma unroll
    for (int k = 0; k < 9; k++) set4(x, k, *(const float4 *)tile.at(k, at.row, at.lane));
    each_channel([&](int c) { x.of[c] = scale9(x.of[c], unit); });
    return x;
}
// The result of a product.
DEV Quad read_product(const Tile &tile, const Spot &at) { return read_tile(tile, at, tile.units[at.row]); }

// Writes an atom as halves, for a product with matrices of this unit. The atom's own unit is a power of two, with which
// its largest number is about 2^14.
DEV void write_halves(const Tile &tile, const Spot &at, const Quad &x, float unit)
{
    float largest = 0;
#pragma unroll
    for (int k = 0; k < 36; k++) largest = fmaxf(largest, fabsf(x.of[k / 9].v[k % 9]));
#pragma unroll
    for (int mask = 16; mask; mask /= 2) largest = fmaxf(largest, exchange(largest, mask));
    const int exponent = min(max(__float_as_int(largest) >> 23, 27), 250);
    const float scale = __int_as_float((268 - exponent) << 23);
    wait_for_warp(); // all lanes have read the floats that lay there
#pragma unroll
    for (int k = 0; k < 9; k++) {
        unsigned big[2], small[2];
#pragma unroll
        for (int pair = 0; pair < 2; pair++) {
            const float a = x.of[2 * pair].v[k] * scale, b = x.of[2 * pair + 1].v[k] * scale;
            big[pair] = pack_halves(a, b);
            const float2 back = unpack_halves(big[pair]);
            small[pair] = pack_halves(a - back.x, b - back.y);
        }
        const int piece = at.lane / 2, within = at.lane % 2 * 2;
        *(uint2 *)(tile.at(k, at.row, piece) + within) = make_uint2(big[0], big[1]);
        *(uint2 *)(tile.at(k, at.row, 16 + piece) + within) = make_uint2(small[0], small[1]);
    }
    tile.units[at.row] = __int_as_float((exponent - 14) << 23) * unit;
}

// Rows of COUNT components times their matrix, in place.
template <int FIRST, int COUNT> DEV void multiply_part(const Tile &tile, Weights &weights)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float sums[COUNT * ATOMS / 2];
    sum_products<FIRST, COUNT>(tile, weights, sums);
    __syncthreads(); // all have read these rows
#pragma unroll
    for (int k = 0; k < COUNT * ATOMS / 2; k++) {
        const int row = k / 4 * 8 + lane % 4 * 2 + k % 2, channel = warp * 16 + k / 2 % 2 * 8 + lane / 4;
        tile.at(FIRST + row / ATOMS, row % ATOMS, channel / 4)[channel % 4] = sums[k];
    }
}

// All atoms of a tile times the matrices of the three parts, in place. Before and after, all threads meet.
DEV void multiply(const Tile &tile, const uint4 *matrices)
{
    Weights weights(matrices);
    show_to_products();
    __syncthreads();
    multiply_part<4, 5>(tile, weights);
    multiply_part<1, 3>(tile, weights);
    multiply_part<0, 1>(tile, weights);
    __syncthreads();
}

// X' = X̂ + D + factor D D.
DEV N9 updated(const N9 &x, const N9 &d, float factor) { return add9(add9(x, d), scale9(square(d), factor)); }

// Standardises the norms of three parts over all channels: n becomes (n - mean) / deviation; returns 1 / deviation.
DEV float standardise(float (&n)[3][4], float epsilon)
{
    float total = 0, squares = 0;
#pragma unroll
    for (int k = 0; k < 12; k++) total += n[k / 4][k % 4];
    const float mean = sum_of_warp(total) / (3 * C);
#pragma unroll
    for (int k = 0; k < 12; k++) {
        n[k / 4][k % 4] -= mean;
        squares += n[k / 4][k % 4] * n[k / 4][k % 4];
    }
    const float inverse = 1.0f / sqrtf(sum_of_warp(squares) / (3 * C) + epsilon);
#pragma unroll
    for (int k = 0; k < 12; k++) n[k / 4][k % 4] *= inverse;
    return inverse;
}
