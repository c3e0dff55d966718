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

// What a thread of a cluster's first block reads of the coordinates: all of it at once and before anything else, since
// the host's memory is far. given: a number in the caller's order; the others are of atom `tid` in the model's order.
struct Arriving {
    double given, cell[9], image[3], origin[3];
    int atom;
};
DEV void read_coordinates(const Block &b, Arriving &from)
{
    const Params &p = b.p;
    const int n = p.num_atoms, i = b.tid;
    from.given = b.rank == 0 && i < 3 * n ? p.given[i] : 0;
    from.atom = 0;
#pragma unroll
    for (int k = 0; k < 9; k++) from.cell[k] = 0;
#pragma unroll
    for (int k = 0; k < 3; k++) from.image[k] = from.origin[k] = 0;
    if (b.rank == 0 && i < n) {
        const long long s = p.num_systems == 1 ? 0 : p.system[i];
        from.atom = p.order[i];
#pragma unroll
        for (int k = 0; k < 3; k++) from.image[k] = p.images[3 * i + k], from.origin[k] = p.origin[3 * s + k];
#pragma unroll
        for (int k = 0; k < 9; k++) from.cell[k] = p.given_cell[9 * s + k];
    }
}

// Gives the coordinates to all blocks of the cluster.
DEV void bring_in(const Block &b, const Arriving &from, int turn)
{
    const Params &p = b.p;
    const int n = p.num_atoms, quads = (6 * n + 3) / 4, i = b.tid;
    if (i == 0) expect(turn, 16 * quads);
    if (b.rank == 0) {
        double *unsorted = all_places(b) + 5 * n + 1; // behind the starts
        if (i < 3 * n) unsorted[i] = from.given;
        __syncthreads();
        if (i < n) {
#pragma unroll
            for (int k = 0; k < 3; k++) {
                const double x = unsorted[3 * from.atom + k];
                const double place = x - from.image[0] * from.cell[k] - from.image[1] * from.cell[3 + k] -
                                     from.image[2] * from.cell[6 + k] - from.origin[k];
                all_places(b)[3 * i + k] = place;
                if (b.cluster == 0) {
                    p.places[3 * i + k] = place, p.rounded[3 * i + k] = (float)place;
                    if (p.kept_positions) p.kept_positions[3 * from.atom + k] = x;
                }
            }
        }
        __syncthreads();
#pragma unroll 1
        for (int k = b.warp / SHARES * 32 + b.lane; k < quads; k += WARPS / SHARES * 32) {
            const float *quad = b.v1 + 4 * k;
            push4(b.remote, quad, *(const float4 *)quad, turn);
        }
    } else if (b.rank == 1 && b.cluster == 0) {
#pragma unroll 1
        for (int k = i; k < 9 * p.num_systems; k += THREADS) {
            const double value = p.given_cell[k];
            p.box[k] = value, p.rounded_cell[k] = (float)value;
            if (p.kept_cell) p.kept_cell[k] = value;
        }
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

// What the results of an atom need of the start, by the block that gives them out: its place in the caller's order, and
// whether its coordinates are bad (1) or far out (2).
DEV bool gives_out(const Block &b) { return b.cluster == 0 && b.rank == SHARES - 1; }
DEV void note_places(Block &b)
{
    const Params &p = b.p;
    const int i = b.tid - THREADS / 2;
    b.atom = b.flaws = 0;
    if (!gives_out(b) || i < 0 || i >= p.num_atoms) return;
    b.atom = p.order[i];
    const double far = *p.far;
#pragma unroll
    for (int k = 0; k < 3; k++) {
        const float place = (float)all_places(b)[3 * i + k];
        b.flaws |= (place - place == 0 ? 0 : 1) | (fabs((double)place) > far ? 2 : 0);
    }
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
    note_places(b);
    describe_list(b, b.total);
}

// Results in the caller's order, and flags, for the device and for the host: energies by the first half of the warps,
// forces by the others.
DEV void give_out(const Block &b)
{
    const Params &p = b.p;
    const int n = p.num_atoms, i = b.tid - THREADS / 2;
    const long long to_host = p.host_output - p.output;
    int *atoms = (int *)b.scratch, *flaws = atoms + n, *wrong = flaws + n;
    if (i >= 0 && i < n) {
        const float4 *const from[1] = {p.told_forces + i};
        float4 heard[1];
        hear(b, from, heard);
        const float force[3] = {heard[0].x, heard[0].y, heard[0].z};
        float rest = 0;
#pragma unroll
        for (int k = 0; k < 3; k++) {
            p.forces_out[3 * b.atom + k] = force[k];
            if (p.to_host > 1) p.forces_out[to_host + 3 * b.atom + k] = force[k];
            rest += force[k] - force[k]; // 0, if it is finite
        }
        atoms[i] = b.atom, flaws[i] = b.flaws | (rest == 0 ? 0 : 1);
    }
    if (i < 0) sum_energies(b, b.warp, WARPS / 2, wrong);
    __syncthreads();
    if (p.energies_out && i >= 0 && i < n) {
        const double energy = p.energies[i];
        p.energies_out[b.atom] = energy;
        if (p.to_host > 1) p.energies_out[to_host + b.atom] = energy;
    }
    if (i < 0 && b.tid < p.num_systems) {
        const double energy = p.energy[b.tid];
        p.energy_out[b.tid] = energy;
        if (p.to_host) p.energy_out[to_host + b.tid] = energy;
    }
    if (b.warp == 0) {
        int first = n, count = 0, far = 0;
#pragma unroll 1
        for (int k = b.lane; k < n; k += 32) {
            const bool bad = flaws[k] & 1 || wrong[k];
            if (bad) first = min(first, atoms[k]), count++;
            far |= flaws[k] >> 1;
        }
#pragma unroll
        for (int mask = 16; mask; mask >>= 1)
            first = min(first, exchange(first, mask)), count += exchange(count, mask), far |= exchange(far, mask);
        if (b.lane < NUM_FLAGS) {
            const int k = b.lane;
            const long long flag = k == 0   ? b.total
                                   : k == 1 ? b.total > p.slots
                                   : k == 2 ? count
                                   : k == 3 ? first
                                   : k == 4 ? far
                                            : 0;
            p.flags[k] = flag;
            if (p.to_host) p.flags[to_host + k] = flag;
        }
    }
}
