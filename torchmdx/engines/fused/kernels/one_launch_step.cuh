// The whole step of few atoms without periodic directions: coordinates in, all pairs, results out. All blocks know all
// atoms: a block of each cluster reads them, from the host's memory where they are there, and gives them to the others.
#pragma once
#include "one_launch_edges.cuh"

// In shared memory, until the edges are made: coordinates [N][3] in the model's order and frame, whose bits are
// neighbours of each atom [N], and where its row starts [N+1]. The memory is that of the vectors, which come much later.
DEV double *all_places(const Block &b) { return (double *)b.v1; }
DEV unsigned long long *all_near(const Block &b) { return (unsigned long long *)(b.v1 + 6 * b.p.num_atoms); }
DEV int *all_starts(const Block &b) { return (int *)(b.v1 + 8 * b.p.num_atoms); }

// Beyond this, and where they are not numbers, coordinates have no neighbours.
DEV bool has_place(const double *x)
{
    const double farthest = 1073741824.0;
    return fabs(x[0]) < farthest && fabs(x[1]) < farthest && fabs(x[2]) < farthest;
}

DEV void bring_in(const Block &b, int turn)
{
    const Params &p = b.p;
    const int quads = (6 * p.num_atoms + 3) / 4;
    if (b.rank == 0) {
#pragma unroll 1
        for (int i = b.tid; i < p.num_atoms; i += THREADS) {
            const int atom = p.order[i];
            const long long s = p.num_systems == 1 ? 0 : p.system[i];
            double x[3], cell[9], image[3];
#pragma unroll
            for (int k = 0; k < 3; k++) x[k] = p.given[3 * atom + k], image[k] = p.images[3 * i + k];
#pragma unroll
            for (int k = 0; k < 9; k++) cell[k] = p.given_cell[9 * s + k];
#pragma unroll
            for (int k = 0; k < 3; k++) {
                const double place = x[k] - image[0] * cell[k] - image[1] * cell[3 + k] - image[2] * cell[6 + k] -
                                     p.origin[3 * s + k];
                all_places(b)[3 * i + k] = place;
                if (b.cluster == 0) {
                    p.places[3 * i + k] = place, p.rounded[3 * i + k] = (float)place;
                    if (p.kept_positions) p.kept_positions[3 * atom + k] = x[k];
                }
            }
        }
    } else if (b.rank == 1 && b.cluster == 0) {
#pragma unroll 1
        for (int k = b.tid; k < 9 * p.num_systems; k += THREADS) {
            const double value = p.given_cell[k];
            p.box[k] = value, p.rounded_cell[k] = (float)value;
            if (p.kept_cell) p.kept_cell[k] = value;
        }
    }
    __syncthreads();
    if (b.tid == 0) expect(turn, 16 * quads);
    if (b.rank == 0)
#pragma unroll 1
        for (int k = b.tid; k < quads * SHARES; k += THREADS) {
            float *quad = b.v1 + 4 * (k % quads);
            push4(quad, k / quads, *(const float4 *)quad, turn);
        }
}

DEV void all_pairs(const Block &b)
{
    const Params &p = b.p;
    const int n = p.num_atoms;
#pragma unroll 1
    for (int i = b.warp; i < n; i += WARPS) {
        const double *here = all_places(b) + 3 * i;
        const float x = (float)here[0], y = (float)here[1], z = (float)here[2];
        const bool some = has_place(here);
        const long long system = p.num_systems == 1 ? 0 : p.system[i];
        unsigned long long near = 0;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int j = b.lane + 32 * h;
            bool is_near = some && j < n && j != i;
            if (is_near) {
                const double *there = all_places(b) + 3 * j;
                const float dx = (float)there[0] - x, dy = (float)there[1] - y, dz = (float)there[2] - z;
                is_near = has_place(there) && dx * dx + dy * dy + dz * dz < p.radius_squared &&
                          (p.num_systems == 1 || p.system[j] == system);
            }
            near |= (unsigned long long)ballot(is_near) << (32 * h);
        }
        if (b.lane == 0) all_near(b)[i] = near;
    }
    __syncthreads();
    if (b.tid <= n) {
        int sum = 0;
#pragma unroll 4
        for (int k = 0; k < b.tid; k++) sum += __popcll(all_near(b)[k]);
        all_starts(b)[b.tid] = sum;
    }
    __syncthreads();
}

// What others read of the list, beside its edges.
DEV void describe_list(const Block &b, int total)
{
    const Params &p = b.p;
    if (b.rank == 0 && b.tid <= b.atoms) p.row_ptr[b.first + b.tid] = min(all_starts(b)[b.first + b.tid], p.slots);
    if (b.rank == 1)
#pragma unroll 1
        for (int e = total + b.cluster * THREADS + b.tid; e < p.slots; e += b.clusters * THREADS) {
            p.source[e] = p.target[e] = p.num_atoms - 1;
            p.shifts[3LL * e] = p.shifts[3LL * e + 1] = p.shifts[3LL * e + 2] = 0;
        }
    if (b.rank == 2 && b.cluster == 0 && b.warp == 0) {
        bool lost = false;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int j = b.lane + 32 * h;
            lost = lost || (j < p.num_atoms && !has_place(all_places(b) + 3 * j));
        }
        const bool any = ballot(lost) != 0;
        if (b.lane == 0) {
            *p.num_edges = min(total, p.slots), *p.needed = total;
            *p.overflow = total > p.slots, *p.invalid = any, *p.updates += 1;
        }
    }
}

// The edges of this block's atoms, and what others read of them.
DEV void make_list(Block &b)
{
    const Params &p = b.p;
    const int n = p.num_atoms, *starts = all_starts(b);
    b.total = starts[n];
    if (b.atoms) {
        b.first_edge = min(starts[b.first], p.slots);
        b.num_edges = min(starts[b.first + b.atoms], p.slots) - b.first_edge;
    }
    place_edges(b);
    if (b.tid < b.atoms) {
        b.first_of(b.tid) = min(starts[b.first + b.tid], p.slots) - b.first_edge;
        b.end_of(b.tid) = min(starts[b.first + b.tid + 1], p.slots) - b.first_edge;
    }
#pragma unroll 1
    for (int o = b.tid; o < b.atoms * n; o += THREADS) {
        const int i = b.first + o / n, j = o % n;
        const unsigned long long near = all_near(b)[i];
        const int e = starts[i] + __popcll(near & ((1ull << j) - 1));
        if (!(near >> j & 1) || e >= p.slots) continue;
        const int element = (int)p.numbers[j], back = starts[j] + __popcll(all_near(b)[j] & ((1ull << i) - 1));
        const double *here = all_places(b) + 3 * i, *there = all_places(b) + 3 * j;
        const double v[3] = {there[0] - here[0], there[1] - here[1], there[2] - here[2]};
        put_edge(b, e - b.first_edge, v, j, element, back < p.slots ? back : NOWHERE);
        if (b.rank == 0) {
            p.source[e] = j, p.target[e] = i;
            p.shifts[3LL * e] = p.shifts[3LL * e + 1] = p.shifts[3LL * e + 2] = 0;
        }
    }
    describe_list(b, b.total);
}

// By the last block that ends: results in the caller's order, and flags, for the device and for the host.
DEV void give_out(const Block &b)
{
    const Params &p = b.p;
    int *bad = (int *)b.scratch, *away = bad + p.num_atoms;
    const long long to_host = p.host_output - p.output;
    const int i = b.tid;
    if (i < p.num_systems) {
        const double energy = __ldcg(p.energy + i);
        p.energy_out[i] = energy;
        if (p.to_host) p.energy_out[to_host + i] = energy;
    }
    if (i < p.num_atoms) {
        const int atom = p.order[i];
        const double energy = __ldcg(p.energies + i), far = *p.far;
        double rest = energy - energy;
        bool is_away = false;
        if (p.energies_out) {
            p.energies_out[atom] = energy;
            if (p.to_host > 1) p.energies_out[to_host + atom] = energy;
        }
#pragma unroll
        for (int k = 0; k < 3; k++) {
            const double force = __ldcg(p.forces + 3 * i + k), place = __ldcg(p.rounded + 3 * i + k);
            p.forces_out[3 * atom + k] = force;
            if (p.to_host > 1) p.forces_out[to_host + 3 * atom + k] = force;
            rest += (force - force) + (place - place);
            is_away = is_away || fabs(place) > far;
        }
        bad[i] = rest == 0 ? p.num_atoms : atom, away[i] = is_away; // a number minus itself is 0, if it is finite
    }
    __syncthreads();
    if (b.warp == 0) {
        int first = p.num_atoms, count = 0, any = 0;
#pragma unroll 1
        for (int k = b.lane; k < p.num_atoms; k += 32)
            first = min(first, bad[k]), count += bad[k] < p.num_atoms, any |= away[k];
#pragma unroll
        for (int mask = 16; mask; mask >>= 1)
            first = min(first, exchange(first, mask)), count += exchange(count, mask), any |= exchange(any, mask);
        if (b.lane < NUM_FLAGS) {
            const long long flags[6] = {b.total, b.total > p.slots, count, first, any, 0};
            long long flag = 0;
#pragma unroll
            for (int k = 0; k < 6; k++) flag = b.lane == k ? flags[k] : flag;
            p.flags[b.lane] = flag;
            if (p.to_host) p.flags[to_host + b.lane] = flag;
        }
    }
}

DEV void finish_step(const Block &b)
{
    make_visible();
    __syncthreads();
    if (b.tid == 0) shared_launch() = count_up(b.p.counters + 2) % gridDim.x == gridDim.x - 1;
    __syncthreads();
    if (!shared_launch()) return;
    make_visible();
    give_out(b);
}
