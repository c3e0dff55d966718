// What happens within each atom between sums over neighbours, a tile of atoms in shared memory: see atom_tiles.py.
#include "atom_tiles.cuh"

// Sums over neighbours times the first matrices.
DEV void multiply_sums(const Params &p, const Tile &tile)
{
    each_atom(p, [&](const Spot &at) {
#pragma unroll
        for (int k = 0; k < 9; k++)
            copy_later(tile.at(k, at.row, at.lane), p.sums + (at.atom * 9 + k) * C + 4 * at.lane);
    });
    wait_for_copies();
    each_atom(p, [&](const Spot &at) { write_halves(tile, at, read_tile(tile, at, 1.0f), p.first_unit); });
    multiply(tile, p.first);
}

// The tile times the second matrices is the result.
DEV void multiply_to_result(const Params &p, const Tile &tile)
{
    multiply(tile, p.second);
    each_atom(p, [&](const Spot &at) { write_global(p.result, at, read_product(tile, at)); });
}

// Writes X̂ of the next layer and its inverse from X; X̂ for a product.
DEV void write_normalised(const Params &p, const Tile &tile, const Spot &at, Quad &x)
{
    float inverse[1][4];
    each_channel([&](int c) {
        inverse[0][c] = reciprocal(squared_norm(x.of[c]) + 1.0f);
        x.of[c] = scale9(x.of[c], inverse[0][c]);
    });
    write_global(p.out, at, x);
    write_channels(p.out_inverse, at, inverse);
    write_halves(tile, at, x, p.second_unit);
}

// A → mix → gate → X̂ of the first layer → Y.
DEV void embedded(const Params &p, const Tile &tile)
{
    multiply_sums(p, tile);
    each_atom(p, [&](const Spot &at) {
        float gate[3][4];
        read_channels(gate, p.gate, at);
        Quad x = read_product(tile, at);
        if (p.mixed) write_global(p.mixed, at, x);
        each_channel([&](int c) {
            x.of[c] = scale_parts(x.of[c], silu(gate[0][c]), silu(gate[1][c]), silu(gate[2][c]));
        });
        write_normalised(p, tile, at, x);
    });
    multiply_to_result(p, tile);
}

// X' of a layer from its X̂, and D, which is in the tile.
DEV Quad update(const Params &p, const Tile &tile, const Spot &at)
{
    Quad x = read_global(p.x, at);
    const Quad d = read_product(tile, at);
    if (p.d) write_global(p.d, at, d);
    const float factor = charge_factor(p, at);
    each_channel([&](int c) { x.of[c] = updated(x.of[c], d.of[c], factor); });
    return x;
}

// P̂ → D → X̂ of the next layer → Y.
DEV void next_layer(const Params &p, const Tile &tile)
{
    multiply_sums(p, tile);
    each_atom(p, [&](const Spot &at) {
        Quad x = update(p, tile, at);
        write_normalised(p, tile, at, x);
    });
    multiply_to_result(p, tile);
}

// The norms of the parts of X over all channels, standardised; returns 1 / deviation.
DEV float standardised_norms(const Params &p, const Quad &x, float (&n)[3][4])
{
    each_channel([&](int c) {
        float part[3];
        part_norms(x.of[c], part);
        n[0][c] = part[0], n[1][c] = part[1], n[2][c] = part[2];
    });
    return standardise(n, p.epsilon);
}

// P̂ → D of the last layer → standardised norms of X.
DEV void last_layer(const Params &p, const Tile &tile)
{
    multiply_sums(p, tile);
    each_atom(p, [&](const Spot &at) {
        float n[3][4], scale[3][4], offset[3][4];
        standardised_norms(p, update(p, tile, at), n);
        read_channels(scale, p.scale, {0, 0, at.lane});
        read_channels(offset, p.offset, {0, 0, at.lane});
#pragma unroll
        for (int e = 0; e < 12; e++) n[e / 4][e % 4] = n[e / 4][e % 4] * scale[e / 4][e % 4] + offset[e / 4][e % 4];
        write_channels(p.norms, at, n);
    });
}

// The gradient in D from that in X', for the product with it.
DEV void write_update_halves(const Params &p, const Tile &tile, const Spot &at, Quad &g, const Quad &d)
{
    const float factor = charge_factor(p, at);
    each_channel([&](int c) { g.of[c] = add9(g.of[c], scale9(square_gradient(d.of[c], g.of[c]), factor)); });
    write_halves(tile, at, g, p.second_unit);
}

// The gradient in D, which is in the tile → in P̂ → in Y and M.
DEV void multiply_to_messages(const Params &p, const Tile &tile)
{
    multiply(tile, p.second);
    each_atom(p, [&](const Spot &at) {
        const Quad y = read_global(p.y, at);
        Quad m = read_global(p.m, at), g = read_product(tile, at);
        const float factor = charge_factor(p, at);
        each_channel([&](int c) {
            const N9 made = message_product(y.of[c], m.of[c], factor);
            const float inverse = reciprocal(squared_norm(made) + 1.0f);
            const N9 back = normalise_gradient(scale9(made, inverse), inverse, g.of[c]);
            g.of[c] = message_product_gradient(m.of[c], back, factor);
            m.of[c] = message_product_gradient(y.of[c], back, factor);
        });
        write_global(p.result, at, g);
        write_global(p.m, at, m);
    });
}

// The gradient in norms → in X and D of the last layer → in P̂ → in Y and M.
DEV void last_layer_gradient(const Params &p, const Tile &tile)
{
    each_atom(p, [&](const Spot &at) {
        Quad x = read_global(p.x, at);
        const Quad d = read_global(p.d, at);
        const float factor = charge_factor(p, at);
        float n[3][4], g[3][4], level = 0, along = 0;
        read_channels(g, p.norms, at);
        each_channel([&](int c) { x.of[c] = updated(x.of[c], d.of[c], factor); });
        const float inverse = standardised_norms(p, x, n);
#pragma unroll
        for (int e = 0; e < 12; e++) level += g[e / 4][e % 4], along += g[e / 4][e % 4] * n[e / 4][e % 4];
        level = sum_of_warp(level) / (3 * C), along = sum_of_warp(along) / (3 * C);
#pragma unroll
        for (int e = 0; e < 12; e++) g[e / 4][e % 4] = inverse * (g[e / 4][e % 4] - level - n[e / 4][e % 4] * along);
        each_channel([&](int c) { x.of[c] = part_norms_gradient(x.of[c], g[0][c], g[1][c], g[2][c]); });
        write_global(p.gradient, at, x);
        write_update_halves(p, tile, at, x, d);
    });
    multiply_to_messages(p, tile);
}

// The gradient in Y → in X of this layer → in D of the layer before → in its P̂ → in its Y and M.
DEV void next_layer_gradient(const Params &p, const Tile &tile)
{
    multiply_sums(p, tile);
    each_atom(p, [&](const Spot &at) {
        Quad g = read_received(p, at);
        const Quad through = read_product(tile, at);
        {
            const Quad x = read_global(p.x, at);
            float inverse[1][4];
            read_channels(inverse, p.inverse, at);
            each_channel([&](int c) {
                g.of[c] = normalise_gradient(x.of[c], inverse[0][c], add9(g.of[c], through.of[c]));
            });
        }
        write_global(p.gradient, at, g);
        write_update_halves(p, tile, at, g, read_global(p.d, at));
    });
    multiply_to_messages(p, tile);
}

// The gradient in Y of the first layer → in X → in the gate and in mix(A) → in A.
DEV void embedded_gradient(const Params &p, const Tile &tile)
{
    multiply_sums(p, tile);
    each_atom(p, [&](const Spot &at) {
        Quad g = read_received(p, at);
        const Quad through = read_product(tile, at), mixed = read_global(p.mixed, at);
        float gate[3][4];
        read_channels(gate, p.gate, at);
        each_channel([&](int c) {
            float part[3];
            const float f0 = silu(gate[0][c]), f1 = silu(gate[1][c]), f2 = silu(gate[2][c]);
            const N9 x = scale_parts(mixed.of[c], f0, f1, f2);
            const float inverse = reciprocal(squared_norm(x) + 1.0f);
            const N9 in_x = normalise_gradient(scale9(x, inverse), inverse, add9(g.of[c], through.of[c]));
            dot_parts(in_x, mixed.of[c], part);
#pragma unroll
            for (int e = 0; e < 3; e++) gate[e][c] = part[e] * silu_slope(gate[e][c]);
            g.of[c] = scale_parts(in_x, f0, f1, f2);
        });
        write_channels(p.gate, at, gate);
        write_halves(tile, at, g, p.second_unit);
    });
    multiply_to_result(p, tile);
}

// Whether this block has an atom: before all waits, for all of its threads.
DEV bool has_atoms(const Params &p) { return (int)blockIdx.x * ATOMS < count_of(p, p.count); }
DEV Tile shared_tile() { return {shared_base(), shared_base() + ATOMS * 9 * C}; }

#ifndef EMULATED
// Each kernel is compiled by itself: NAME, which calls KERNEL, one of the functions above.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) NAME(const __grid_constant__ Params p)
{
    if (has_atoms(p)) KERNEL(p, shared_tile());
}
#endif
