// Steps of dynamics inside the launch. Every block moves all atoms, since all of them hear all forces: it advances them,
// works out the step with the others, and commits it, or halts with all others if it is bad. The equations are those of
// torchmdx/dynamics/integrators and torchmdx/dynamics/kernels.
#pragma once
#include "one_launch_step.cuh"

enum { FREE, LANGEVIN, BUSSI }; // thermostat

enum { PARTS = 4 };

// One of four parts of what three standard normal numbers of random_numbers.py are products of, for the particle's seed
// and number: Philox4x32-10, Box and Muller.
APART void draw(Particle *own, long long step, int part)
{
    unsigned c0 = (unsigned)own->number, c1 = (unsigned)step, c2 = (unsigned)(step >> 32), c3 = 0;
    unsigned k0 = (unsigned)own->seed, k1 = (unsigned)(own->seed >> 32);
#pragma unroll 1
    for (int round = 0; round < 10; round++) {
        const unsigned long long first = 0xD2511F53ull * c0, second = 0xCD9E8D57ull * c2;
        c0 = (unsigned)(second >> 32) ^ c1 ^ k0, c1 = (unsigned)second;
        c2 = (unsigned)(first >> 32) ^ c3 ^ k1, c3 = (unsigned)first;
        k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
    const double unit = 1.0 / 4294967296.0;
    if (part < 2)
        own->drawn[part ? OTHER_RADIUS : RADIUS] = sqrt(-2.0 * log(((part ? c2 : c0) + 0.5) * unit));
    else if (part == 2)
        sincospi((c1 + 0.5) * (2.0 * unit), own->drawn + SINE, own->drawn + COSINE);
    else
        own->drawn[OTHER_COSINE] = cospi((c3 + 0.5) * (2.0 * unit));
}

// Random numbers of all particles for a step: the parts by warps of their own, other warps are busy with sums.
DEV void draw_all(const Block &b, long long step)
{
    const int part = b.tid / MOST_IN_STEP - (THREADS / MOST_IN_STEP - PARTS), i = b.tid % MOST_IN_STEP;
    if (part >= 0 && b.p.thermostat != FREE && i < b.p.num_atoms) draw(b.particles + i, step, part);
}

DEV double noise_of(const Particle &own, int k)
{
    const double *drawn = own.drawn;
    return k == 2 ? drawn[OTHER_RADIUS] * drawn[OTHER_COSINE] : drawn[RADIUS] * drawn[k == 0 ? COSINE : SINE];
}

// The state, and what is constant of each atom and system.
DEV void take_motion(const Block &b)
{
    const Params &p = b.p;
    const int i = own_particle(b);
    if (i >= p.num_atoms) return;
    Particle &own = b.particles[i];
    const int atom = p.order[i];
    const long long s = p.num_systems == 1 ? 0 : p.system[i];
    const double inverse = p.inverse_masses[atom], *cell = p.given_cell + 9 * s;
    own.half = 0.5 * p.motion[0], own.kick = p.motion[1] * inverse, own.kept = p.motion[2];
    own.scale = p.motion[3] * sqrt(p.thermal[s] * inverse);
    own.mass = p.masses[atom], own.counted = p.counted[atom], own.first = p.first_counted[s] == atom;
    own.seed = p.seeds[s], own.number = (int)p.place[atom];
#pragma unroll
    for (int k = 0; k < 3; k++) {
        own.x[k] = p.state_positions[3 * atom + k], own.v[k] = p.state_velocities[3 * atom + k];
        own.f[k] = p.state_forces[3 * atom + k];
        own.offset[k] = p.images[3 * i] * cell[k] + p.images[3 * i + 1] * cell[3 + k] +
                        p.images[3 * i + 2] * cell[6 + k] + p.origin[3 * s + k];
    }
    if (i < p.num_systems) own.thermal = p.thermal[i], own.held = p.held[i];
}

// Positions of the next step, as the model sees them, and velocities half a kick before those of that step.
DEV void advance(const Block &b)
{
    const Params &p = b.p;
    const int i = own_particle(b);
    if (i < p.num_atoms) {
        Particle &own = b.particles[i];
        int flaws = 0;
#pragma unroll
        for (int k = 0; k < 3; k++) {
            const double v = own.v[k] + own.kick * own.f[k];
            const double w = p.thermostat == LANGEVIN ? own.kept * v + own.scale * noise_of(own, k) : v;
            const double x = own.x[k] + own.half * (v + w), place = x - own.offset[k];
            own.moved[k] = x, own.faster[k] = w, all_places(b)[3 * i + k] = place;
            flaws |= flaws_of(place, own.far);
        }
        own.flaws = flaws | (has_place(all_places(b) + 3 * i) ? 0 : 4);
        round_place(b, i);
    }
    if (b.tid < 2) b.counted[b.tid] = 0;
    __syncthreads();
}

// Velocity rescaling of each structure, without its drift, which `faster` of the particle of its number has meanwhile.
DEV void rescale(const Block &b)
{
    const Params &p = b.p;
    __syncthreads();
#pragma unroll 1
    for (int s = b.warp; s < p.num_systems; s += WARPS) {
        double twice = 0, others = 0, chosen = 0, momentum[3] = {0, 0, 0};
#pragma unroll 1
        for (int i = b.lane; i < p.num_atoms; i += 32) {
            const Particle &own = b.particles[i];
            if (p.num_systems > 1 && p.system[i] != s) continue;
            const double *v = own.v, z[3] = {noise_of(own, 0), noise_of(own, 1), noise_of(own, 2)};
            twice += own.mass * (v[0] * v[0] + v[1] * v[1] + v[2] * v[2]);
            others += own.counted * (z[0] * z[0] + z[1] * z[1] + z[2] * z[2]);
            chosen += own.first ? z[0] : 0;
#pragma unroll
            for (int k = 0; k < 3; k++) momentum[k] += own.mass * v[k];
        }
        Particle &all = b.particles[s];
#pragma unroll
        for (int mask = 16; mask; mask >>= 1) {
            twice += exchange(twice, mask), others += exchange(others, mask), chosen += exchange(chosen, mask);
#pragma unroll
            for (int k = 0; k < 3; k++) momentum[k] += exchange(momentum[k], mask);
        }
        twice -= all.held * (momentum[0] * momentum[0] + momentum[1] * momentum[1] + momentum[2] * momentum[2]);
        const double kept = all.kept, ratio = (1 - kept) * all.thermal / (twice > 0 ? twice : 1);
        const double square = kept + ratio * others + 2 * chosen * sqrt(kept * ratio);
        const double alpha = sqrt(square > 0 ? square : 0);
        if (b.lane == 0) {
            all.alpha = !(twice > 0) ? 1 : chosen * sqrt(ratio) + sqrt(kept) >= 0 ? alpha : -alpha;
#pragma unroll
            for (int k = 0; k < 3; k++) all.faster[k] = all.held * momentum[k];
        }
    }
    __syncthreads();
    const int own = own_particle(b);
    if (own < p.num_atoms) {
        const Particle &all = b.particles[p.num_systems == 1 ? 0 : p.system[own]];
        double *v = b.particles[own].v;
#pragma unroll
        for (int k = 0; k < 3; k++) v[k] = all.faster[k] + all.alpha * (v[k] - all.faster[k]);
    }
    __syncthreads(); // the next step overwrites `faster`
}

// Commits the step, unless it is bad: returns whether it is. doubtful: whether this thread knows that it is.
DEV bool complete(const Block &b, bool doubtful)
{
    const Params &p = b.p;
    const int i = own_particle(b);
    bool bad = doubtful || b.counted[0] > p.slots;
    float4 heard[2];
    double energy = 0;
    if (i < p.num_atoms) {
        const float4 *const from[2] = {forces_told(b) + i, energies_told(b) + i};
        hear(b, from, heard);
        energy = energy_of(heard[1]);
        const float rest = (heard[0].x - heard[0].x) + (heard[0].y - heard[0].y) + (heard[0].z - heard[0].z);
        bad = bad || b.particles[i].flaws & 3 || rest != 0 || energy - energy != 0;
    }
    bad = any_in_block(bad);
    if (bad) return true;
    if (i < p.num_atoms) {
        Particle &own = b.particles[i];
        const double force[3] = {heard[0].x, heard[0].y, heard[0].z};
#pragma unroll
        for (int k = 0; k < 3; k++)
            own.x[k] = own.moved[k], own.v[k] = own.faster[k] + own.kick * force[k], own.f[k] = force[k];
        own.energy = energy;
    }
    if (p.thermostat == BUSSI) rescale(b);
    return false;
}

// What a run continues with, after `good` steps.
DEV void keep_motion(const Block &b, int good, bool halted)
{
    const Params &p = b.p;
    const int i = own_particle(b);
    if (i < p.num_atoms) {
        const Particle &own = b.particles[i];
        double *const to[4] = {p.state_positions, p.state_velocities, p.state_forces, p.moved};
        const double *const from[4] = {own.x, own.v, own.f, own.moved};
#pragma unroll
        for (int kind = 0; kind < 4; kind++)
#pragma unroll
            for (int k = 0; k < 3; k++) to[kind][3 * own.atom + k] = from[kind][k];
#pragma unroll
        for (int k = 0; k < 3; k++) {
            const double place = own.moved[k] - own.offset[k];
            p.places[3 * i + k] = place, p.rounded[3 * i + k] = (float)place;
        }
    } else if (good && b.tid < THREADS / 2)
        sum_energies(b, b.warp, WARPS / 2, b.particles, p.state_energy, 0, 0);
    if (b.tid == 0) {
        p.control[0] = b.number, p.control[1] = halted;
        p.counters[2] += p.steps - 1;
    }
}
