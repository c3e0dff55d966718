// What happens within each atom between sums over neighbours, a tile of atoms in shared memory: see atom_tiles.py.
#include "atom_tiles.cuh"

// Runs a map of (atom of the tile, atom) on the atoms of this warp.
template <class Map> DEV void each_atom(const Params &p, Map map)
{
    const int warp = threadIdx.x / 32;
#pragma unroll 1
    for (int k = warp; k < ATOMS; k += WARPS)
        if (blockIdx.x * ATOMS + k < p.num_atoms) map(k, blockIdx.x * ATOMS + k);
}

// X̂ and its inverse from X, for the next layer.
DEV void write_normalised(const Params &p, const Tile &tile, float *units, Quad &x, int k, int atom, int lane)
{
    float inverse[1][4];
#pragma unroll
    for (int c = 0; c < 4; c++) {
        inverse[0][c] = 1.0f / (squared_norm(x.of[c]) + 1.0f);
        x.of[c] = scale9(x.of[c], inverse[0][c]);
    }
    write_global(p.out, atom, lane, x);
    write_channels(p.out_inverse, atom, lane, inverse);
    units[k] = write_halves(tile, k, lane, x) * p.second_unit;
}

// Reads what a product takes.
DEV void read_sums(const Params &p, const Tile &tile, float *units, int lane)
{
    each_atom(p, [&](int k, int atom) {
        units[k] = write_halves(tile, k, lane, read_global(p.sums, atom, lane)) * p.first_unit;
    });
}

// Writes what a product made.
DEV void write_result(const Params &p, const Tile &tile, const float *units, int lane)
{
    each_atom(p, [&](int k, int atom) { write_global(p.result, atom, lane, read_tile(tile, k, lane, units[k])); });
}

// The gradients in Y and M from that in P̂, which is in the tile.
DEV void write_update_gradient(const Params &p, const Tile &tile, const float *units, int lane)
{
    each_atom(p, [&](int k, int atom) {
        const Quad y = read_global(p.y, atom, lane);
        Quad m = read_global(p.m, atom, lane), g = read_tile(tile, k, lane, units[k]);
        const float factor = charge_factor(p, atom);
#pragma unroll
        for (int c = 0; c < 4; c++) {
            const N9 made = message_product(y.of[c], m.of[c], factor);
            const float inverse = 1.0f / (squared_norm(made) + 1.0f);
            const N9 back = normalise_gradient(scale9(made, inverse), inverse, g.of[c]);
            N9 gy, gm;
            message_product_gradient(y.of[c], m.of[c], back, factor, &gy, &gm);
            g.of[c] = gy, m.of[c] = gm;
        }
        write_global(p.result, atom, lane, g);
        write_global(p.m, atom, lane, m);
    });
}

// A → mix → gate → X̂ of the first layer → Y.
DEV void embedded(const Params &p, const Tile &tile, float *units)
{
    const int lane = threadIdx.x % 32;
    read_sums(p, tile, units, lane);
    multiply(tile, p.first);
    each_atom(p, [&](int k, int atom) {
        float gate[3][4];
        read_channels(gate, p.gate, atom, lane);
        Quad x = read_tile(tile, k, lane, units[k]);
        if (p.mixed) write_global(p.mixed, atom, lane, x);
#pragma unroll
        for (int c = 0; c < 4; c++) x.of[c] = scale_parts(x.of[c], silu(gate[0][c]), silu(gate[1][c]), silu(gate[2][c]));
        write_normalised(p, tile, units, x, k, atom, lane);
    });
    multiply(tile, p.second);
    write_result(p, tile, units, lane);
}

// P̂ → D → X̂ of the next layer → Y.
DEV void next_layer(const Params &p, const Tile &tile, float *units)
{
    const int lane = threadIdx.x % 32;
    read_sums(p, tile, units, lane);
    multiply(tile, p.first);
    each_atom(p, [&](int k, int atom) {
        Quad x = read_global(p.x, atom, lane);
        const Quad d = read_tile(tile, k, lane, units[k]);
        if (p.d) write_global(p.d, atom, lane, d);
        const float factor = charge_factor(p, atom);
#pragma unroll
        for (int c = 0; c < 4; c++) x.of[c] = updated(x.of[c], d.of[c], factor);
        write_normalised(p, tile, units, x, k, atom, lane);
    });
    multiply(tile, p.second);
    write_result(p, tile, units, lane);
}

// P̂ → D of the last layer → standardised norms of X.
DEV void last_layer(const Params &p, const Tile &tile, float *units)
{
    const int lane = threadIdx.x % 32;
    read_sums(p, tile, units, lane);
    multiply(tile, p.first);
    each_atom(p, [&](int k, int atom) {
        const Quad x = read_global(p.x, atom, lane), d = read_tile(tile, k, lane, units[k]);
        if (p.d) write_global(p.d, atom, lane, d);
        const float factor = charge_factor(p, atom);
        float n[3][4], scale[3][4], offset[3][4];
#pragma unroll
        for (int c = 0; c < 4; c++) {
            float part[3];
            part_norms(updated(x.of[c], d.of[c], factor), part);
            n[0][c] = part[0], n[1][c] = part[1], n[2][c] = part[2];
        }
        standardise(n, p.epsilon);
        read_channels(scale, p.scale, 0, lane);
        read_channels(offset, p.offset, 0, lane);
#pragma unroll
        for (int e = 0; e < 12; e++) n[e / 4][e % 4] = n[e / 4][e % 4] * scale[e / 4][e % 4] + offset[e / 4][e % 4];
        write_channels(p.norms, atom, lane, n);
    });
}

// The gradient in D from that in X', for the product with it.
DEV void write_gradient(const Params &p, const Tile &tile, float *units, Quad &g, const Quad &d, int k, int atom,
                        int lane, float unit)
{
    const float factor = charge_factor(p, atom);
#pragma unroll
    for (int c = 0; c < 4; c++) g.of[c] = add9(g.of[c], scale9(square_gradient(d.of[c], g.of[c]), factor));
    units[k] = write_halves(tile, k, lane, g) * unit;
}

// The gradient in norms → in X and D of the last layer → in P̂ → in Y and M.
DEV void last_layer_gradient(const Params &p, const Tile &tile, float *units)
{
    const int lane = threadIdx.x % 32;
    each_atom(p, [&](int k, int atom) {
        Quad x = read_global(p.x, atom, lane);
        const Quad d = read_global(p.d, atom, lane);
        const float factor = charge_factor(p, atom);
        float n[3][4], g[3][4], level = 0, along = 0;
        read_channels(g, p.norms, atom, lane);
#pragma unroll
        for (int c = 0; c < 4; c++) {
            float part[3];
            x.of[c] = updated(x.of[c], d.of[c], factor);
            part_norms(x.of[c], part);
            n[0][c] = part[0], n[1][c] = part[1], n[2][c] = part[2];
        }
        const float inverse = standardise(n, p.epsilon);
#pragma unroll
        for (int e = 0; e < 12; e++) level += g[e / 4][e % 4], along += g[e / 4][e % 4] * n[e / 4][e % 4];
        level = sum_of_warp(level) / (3 * C), along = sum_of_warp(along) / (3 * C);
#pragma unroll
        for (int e = 0; e < 12; e++) g[e / 4][e % 4] = inverse * (g[e / 4][e % 4] - level - n[e / 4][e % 4] * along);
#pragma unroll
        for (int c = 0; c < 4; c++) x.of[c] = part_norms_gradient(x.of[c], g[0][c], g[1][c], g[2][c]);
        write_global(p.gradient, atom, lane, x);
        write_gradient(p, tile, units, x, d, k, atom, lane, p.second_unit);
    });
    multiply(tile, p.second);
    write_update_gradient(p, tile, units, lane);
}

// The gradient in Y → in X of this layer → in D of the layer before → in its P̂ → in its Y and M.
DEV void next_layer_gradient(const Params &p, const Tile &tile, float *units)
{
    const int lane = threadIdx.x % 32;
    read_sums(p, tile, units, lane);
    multiply(tile, p.first);
    each_atom(p, [&](int k, int atom) {
        Quad g = read_global(p.gradient, atom, lane);
        const Quad through = read_tile(tile, k, lane, units[k]);
        {
            const Quad x = read_global(p.x, atom, lane);
            float inverse[1][4];
            read_channels(inverse, p.inverse, atom, lane);
#pragma unroll
            for (int c = 0; c < 4; c++)
                g.of[c] = normalise_gradient(x.of[c], inverse[0][c], add9(g.of[c], through.of[c]));
        }
        write_global(p.gradient, atom, lane, g);
        write_gradient(p, tile, units, g, read_global(p.d, atom, lane), k, atom, lane, p.second_unit);
    });
    multiply(tile, p.second);
    write_update_gradient(p, tile, units, lane);
}

// The gradient in Y of the first layer → in X → in the gate and in mix(A) → in A.
DEV void embedded_gradient(const Params &p, const Tile &tile, float *units)
{
    const int lane = threadIdx.x % 32;
    read_sums(p, tile, units, lane);
    multiply(tile, p.first);
    each_atom(p, [&](int k, int atom) {
        Quad g = read_global(p.gradient, atom, lane);
        const Quad through = read_tile(tile, k, lane, units[k]), mixed = read_global(p.mixed, atom, lane);
        float gate[3][4];
        read_channels(gate, p.gate, atom, lane);
#pragma unroll
        for (int c = 0; c < 4; c++) {
            float part[3];
            const float f0 = silu(gate[0][c]), f1 = silu(gate[1][c]), f2 = silu(gate[2][c]);
            const N9 x = scale_parts(mixed.of[c], f0, f1, f2);
            const float inverse = 1.0f / (squared_norm(x) + 1.0f);
            const N9 in_x = normalise_gradient(scale9(x, inverse), inverse, add9(g.of[c], through.of[c]));
            dot_parts(in_x, mixed.of[c], part);
#pragma unroll
            for (int e = 0; e < 3; e++) gate[e][c] = part[e] * silu_slope(gate[e][c]);
            g.of[c] = scale_parts(in_x, f0, f1, f2);
        }
        write_channels(p.gate, atom, lane, gate);
        units[k] = write_halves(tile, k, lane, g) * p.second_unit;
    });
    multiply(tile, p.second);
    write_result(p, tile, units, lane);
}

#ifndef EMULATED
#define KERNEL(name)                                                                                                   \
    extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) name##_kernel(const __grid_constant__ Params p)        \
    {                                                                                                                  \
        float *memory = shared_base();                                                                                 \
        name(p, Tile{memory}, memory + ATOMS * 9 * C);                                                                 \
    }
KERNEL(embedded)
KERNEL(next_layer)
KERNEL(last_layer)
KERNEL(last_layer_gradient)
KERNEL(next_layer_gradient)
KERNEL(embedded_gradient)
#endif
