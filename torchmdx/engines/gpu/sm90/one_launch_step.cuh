// The whole step of few atoms without periodic directions: coordinates in, all pairs, results out. All blocks know all
// atoms: a block of each cluster reads them, from the host's memory where they are there, and gives them to the others;
// in dynamics every block moves them (one_launch_motion.cuh).
#pragma once
#include "one_launch_edges.cuh"

DEV double over_warp(double v)
{
#pragma unroll
    for (int mask = 16; mask; mask >>= 1) v += exchange(v, mask);
    return v;
}

enum { MOST_IN_STEP = 64 }; // atoms, whose neighbours are bits of a 64-bit word

// In shared memory, until the edges are made: coordinates [N][3] in the model's order and frame, and rounded [N]. The
// memory is that of the vectors, which come much later.
DEV double *all_places(const Block &b) { return (double *)b.v1; }
DEV float4 *all_rounded(const Block &b) { return (float4 *)b.v1 + (6 * b.p.num_atoms + 3) / 4; }

// Beyond this, and where they are not numbers, coordinates have no neighbours.
DEV bool has_place(const double *x)
{
    const double farthest = 1073741824.0;
    return fabs(x[0]) < farthest && fabs(x[1]) < farthest && fabs(x[2]) < farthest;
}

// Rounds the coordinates of an atom, for distances; not a number where it has no place.
DEV void round_place(const Block &b, int i)
{
    const double *place = all_places(b) + 3 * i;
    const float x = has_place(place) ? (float)place[0] : __uint_as_float(0x7fc00000);
    all_rounded(b)[i] = make_float4(x, (float)place[1], (float)place[2], 0);
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
        double *unsorted = all_places(b) + 5 * n + 2; // behind the rounded ones
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
    }
}

// What others read of the cells.
DEV void describe_cells(const Block &b)
{
    const Params &p = b.p;
    if (b.rank != 1 || b.cluster) return;
#pragma unroll 1
    for (int k = b.tid; k < 9 * p.num_systems; k += THREADS) {
        const double value = p.given_cell[k];
        p.box[k] = value, p.rounded_cell[k] = (float)value;
        if (p.kept_cell) p.kept_cell[k] = value;
    }
}

// The atom of `b.particles` that belongs to this thread, if any; N or more for none. Other threads are busy with sums.
DEV int own_particle(const Block &b) { return b.tid < THREADS / 2 ? b.p.num_atoms : b.tid - THREADS / 2; }
// What is known of it before coordinates are.
DEV void read_particles(const Block &b)
{
    const Params &p = b.p;
    const int i = own_particle(b);
    if (i >= p.num_atoms) return;
    Particle &own = b.particles[i];
    const int element = (int)p.numbers[i], atom = p.order[i];
    const double far = *p.far;
    own.element = element, own.atom = atom, own.far = far;
}

// Which atoms are near one, a bit each; by a warp.
DEV unsigned long long near_atoms(const Block &b, int i)
{
    const Params &p = b.p;
    const int n = p.num_atoms;
    const float4 here = all_rounded(b)[i];
    unsigned long long near = 0;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int j = b.lane + 32 * h;
        const float4 there = all_rounded(b)[min(j, n - 1)];
        const float x = there.x - here.x, y = there.y - here.y, z = there.z - here.z;
        bool is_near = j < n && j != i && x * x + y * y + z * z < p.radius_squared;
        if (p.num_systems > 1) is_near = is_near && p.system[j] == p.system[i];
        near |= (unsigned long long)ballot(is_near) << (32 * h);
    }
    return near;
}

// The edges of this block's atoms, each atom's by one warp, with room for N; the other warps count those of all atoms.
DEV void make_list(const Block &b)
{
    const Params &p = b.p;
    const int n = p.num_atoms;
    if (b.warp < b.atoms) {
        const int i = b.first + b.warp, from = b.warp * n;
        const unsigned long long near = near_atoms(b, i);
        const double *here = all_places(b) + 3 * i;
#pragma unroll 1
        for (int j = b.lane; j < n; j += 32) {
            if (!(near >> j & 1)) continue;
            const double *there = all_places(b) + 3 * j;
            const double v[3] = {there[0] - here[0], there[1] - here[1], there[2] - here[2]};
            put_edge(b, from + __popcll(near & ((1ull << j) - 1)), v, j, b.particles[j].element);
        }
        if (b.lane == 0) b.first_of(b.warp) = from, b.end_of(b.warp) = from + __popcll(near);
    } else
#pragma unroll 1
        for (int i = b.warp - b.atoms; i < n; i += WARPS - b.atoms) {
            const int count = __popcll(near_atoms(b, i));
            if (b.lane < 1 + (i < b.first)) add_to(b.counted + b.lane, count);
        }
}

// Whether a coordinate is bad (1) or far out (2), and an atom without a place (4).
DEV int flaws_of(double place, double far)
{
    const float rounded = (float)place;
    return (rounded - rounded == 0 ? 0 : 1) | (fabs((double)rounded) > far ? 2 : 0);
}
DEV bool gives_out(const Block &b) { return b.cluster == 0 && b.rank == SHARES - 1; }
DEV void note_places(const Block &b)
{
    const Params &p = b.p;
    const int i = own_particle(b);
    if (!gives_out(b) || i >= p.num_atoms) return;
    const double far = b.particles[i].far, *place = all_places(b) + 3 * i;
    b.particles[i].flaws =
        flaws_of(place[0], far) | flaws_of(place[1], far) | flaws_of(place[2], far) | (has_place(place) ? 0 : 4);
}

// What others read of the list, written last, when no block waits for it.
DEV void describe_list(const Block &b)
{
    const Params &p = b.p;
    if (b.rank == 0) {
        int e = b.counted[1];
#pragma unroll 1
        for (int a = 0; a < b.atoms; a++) {
            const int i = b.first + a, from = b.first_of(a), count = b.end_of(a) - from;
#pragma unroll 1
            for (int u = b.tid; u < min(count, p.slots - e); u += THREADS) {
                p.source[e + u] = b.edges[from + u].source, p.target[e + u] = i;
                p.shifts[3LL * (e + u)] = p.shifts[3LL * (e + u) + 1] = p.shifts[3LL * (e + u) + 2] = 0;
            }
            if (b.tid == 0) p.row_ptr[i] = min(e, p.slots), p.row_ptr[i + 1] = min(e + count, p.slots);
            e += count;
        }
    } else if (b.rank == 1)
#pragma unroll 1
        for (int e = b.counted[0] + b.cluster * THREADS + b.tid; e < p.slots; e += b.clusters * THREADS) {
            p.source[e] = p.target[e] = p.num_atoms - 1;
            p.shifts[3LL * e] = p.shifts[3LL * e + 1] = p.shifts[3LL * e + 2] = 0;
        }
}

// Results in the caller's order, and flags, for the device and for the host, after this number of evaluations: energies by the
// first half of the warps, forces by the others.
DEV void give_out(const Block &b, int evaluations)
{
    const Params &p = b.p;
    const int n = p.num_atoms, i = own_particle(b), total = b.counted[0];
    const long long to_host = p.host_output - p.output;
    int *wrong = (int *)b.scratch;
    if (i < n) {
        Particle &own = b.particles[i];
        const float4 *const from[1] = {forces_told(b) + i};
        float4 heard[1];
        hear(b, from, heard);
        const float force[3] = {heard[0].x, heard[0].y, heard[0].z};
        float rest = 0;
#pragma unroll
        for (int k = 0; k < 3; k++) {
            p.forces_out[3 * own.atom + k] = force[k];
            if (p.to_host > 1) p.forces_out[to_host + 3 * own.atom + k] = force[k];
            rest += force[k] - force[k]; // 0, if it is finite
        }
        own.flaws |= rest == 0 ? 0 : 1;
    }
    if (b.tid < THREADS / 2) sum_energies(b, b.warp, WARPS / 2, 0, p.energy, p.energies, wrong);
    __syncthreads();
    if (p.energies_out && i < n) {
        const double energy = p.energies[i];
        p.energies_out[b.particles[i].atom] = energy;
        if (p.to_host > 1) p.energies_out[to_host + b.particles[i].atom] = energy;
    }
    if (b.tid < min(p.num_systems, THREADS / 2)) {
        const double energy = p.energy[b.tid];
        p.energy_out[b.tid] = energy;
        if (p.to_host) p.energy_out[to_host + b.tid] = energy;
    }
    if (b.warp == 0) {
        int first = n, count = 0, flaws = 0;
#pragma unroll 1
        for (int k = b.lane; k < n; k += 32) {
            const Particle &own = b.particles[k];
            if (own.flaws & 1 || wrong[k]) first = min(first, own.atom), count++;
            flaws |= own.flaws;
        }
#pragma unroll
        for (int mask = 16; mask; mask >>= 1)
            first = min(first, exchange(first, mask)), count += exchange(count, mask), flaws |= exchange(flaws, mask);
        if (b.lane < NUM_FLAGS && !(UNCERTAIN && b.lane == DOUBTFUL)) { // which another block tells
            const int k = b.lane;
            const long long flag = k == 0   ? total
                                   : k == 1 ? total > p.slots
                                   : k == 2 ? count
                                   : k == 3 ? first
                                   : k == 4 ? flaws >> 1 & 1
                                            : 0;
            p.flags[k] = flag;
            if (p.to_host) p.flags[to_host + k] = flag;
        }
        if (b.lane == 0) {
            *p.num_edges = min(total, p.slots), *p.needed = total;
            *p.overflow = total > p.slots, *p.invalid = flaws > 3, *p.updates += evaluations;
        }
    }
}
