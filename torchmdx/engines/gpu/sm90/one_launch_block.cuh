// Sizes, what the caller passes, and what a block of one_launch.cu has in shared memory.
#pragma once
#include "one_launch_nine.cuh"

enum { C = 128, SHARES = 8, WIDE = C / SHARES, THREADS = 512, WARPS = THREADS / 32, NINE = 9 * WIDE, HEAD = 64 };
enum { SPLITS = 32 }; // threads that share each inner sum of a product
// The network: layers, hidden layers of the head, whether it is gated, and channels; those up to C are zero.
#include "one_launch_network.cuh"
enum { TERMS = 6, QUADS = 5, INTERVAL = QUADS * C }; // a row of a table has 18 numbers a channel, in five times four

// Floats per thread of each product's weights in the order in which they lie in memory.
enum {
    AT_GATE_IN = 0,
    AT_MIX = AT_GATE_IN + 8,
    AT_GATE_OUT = AT_MIX + 12,
    AT_IN = AT_GATE_OUT + 24, // of all layers
    AT_OUT = AT_IN + 12 * LAYERS,
    AT_READ = AT_OUT + 12 * LAYERS,
    AT_HEAD = AT_READ + 12,
    AT_HEAD_BACK = AT_HEAD + HEAD_WEIGHTS,
    AT_MORE = AT_HEAD_BACK + HEAD_WEIGHTS, // of hidden layers of a plain head beyond the first: forward, then back
    AT_READ_BACK = AT_MORE + 2 * MORE_WEIGHTS,
    AT_OUT_BACK = AT_READ_BACK + 12,
    AT_IN_BACK = AT_OUT_BACK + 12 * LAYERS,
    AT_GATE_OUT_BACK = AT_IN_BACK + 12 * LAYERS,
    AT_MIX_BACK = AT_GATE_OUT_BACK + 24,
    AT_GATE_IN_BACK = AT_MIX_BACK + 12,
    WEIGHTS = AT_GATE_IN_BACK + 8
};

// What a block reads besides its weights, in shared memory: vectors over all channels, and those of its own channels.
enum {
    AT_GATE_SCALE = 0,
    AT_GATE_OFFSET = AT_GATE_SCALE + C,
    AT_GATE_LEVEL = AT_GATE_OFFSET + C,
    AT_GATE_SHIFT = AT_GATE_LEVEL + 2 * C,
    AT_READ_SCALE = AT_GATE_SHIFT + 2 * C,
    AT_READ_OFFSET = AT_READ_SCALE + 3 * C,
    AT_READ_LEVEL = AT_READ_OFFSET + 3 * C,
    AT_READ_SHIFT = AT_READ_LEVEL + C,
    AT_HEAD_BIAS = AT_READ_SHIFT + C,
    AT_HEAD_LAST = AT_HEAD_BIAS + HEAD_BIASES,
    AT_GATE_IN_BIAS = AT_HEAD_LAST + HEAD_LASTS, // from here on of the block's own channels
    AT_GATE_OUT_BIAS = AT_GATE_IN_BIAS + 2 * WIDE,
    AT_READ_BIAS = AT_GATE_OUT_BIAS + 3 * WIDE,
    AT_OWN = AT_READ_BIAS + WIDE, // filters of distance 0, [1 + LAYERS][3][WIDE]
    VECTORS = AT_OWN + 3 * (1 + LAYERS) * WIDE,
    STRETCH = 12 // floats of the coordinate of the tables, five double, and of two numbers of edges
};

struct Edge {
    float x, y, z, t;       // direction; place in the interval of the table
    float stretch, inverse; // dx/dr, 1/r
    unsigned short source, back; // atom; edge of the other direction
    short knot, element;         // knot < 0: beyond the cutoff; element of the source
};
enum { NOWHERE = 0xffff }; // as a number of an edge
enum { DOUBTFUL = 5, NUM_FLAGS = 8 };

// An atom of a whole step, in shared memory: its place in the caller's order, whether its coordinates are bad (1), far
// out (2) or without neighbours (4), its element. In dynamics also its motion: position, velocity and force after the
// last good step; position, and velocity half a kick before its own, of the step at work; random numbers; what is
// constant. thermal, held, alpha: of the system of this number; held is its inverse mass, 0 if its drift is thermal.
enum { RADIUS, OTHER_RADIUS, COSINE, SINE, OTHER_COSINE, DRAWN }; // what normal numbers are products of
struct alignas(16) Particle {
    double x[3], v[3], f[3], moved[3], faster[3], offset[3], drawn[DRAWN];
    double energy, half, kick, kept, scale, mass, counted, far, thermal, held, alpha;
    long long seed;
    int atom, flaws, element, number, first;
};

struct Params {
    const void *positions, *cell, *charge;
    const long long *numbers, *system;
    int *row_ptr, *source, *target, *shifts; // read, or made by a whole step
    const double *stretch, *constants, *references, *shift;
    const float *targets, *sources;
    const float4 *table;                    // [3][intervals][QUADS][C]
    const float *vectors;                   // [SHARES][VECTORS]
    const float *weights;                   // [SHARES][WEIGHTS / 4][THREADS][4]
    float4 *y, *gm;                         // told: [2][N][3][C]
    Edge *edges;                            // [SHARES][E]
    float *pull;                            // [SHARES][E]
    float4 *back, *half;                    // told: [E], [SHARES][told_slots]
    float4 *told_energies, *told_forces;    // [2][N]: of odd and even launches and steps of dynamics
    float4 *told_virials;                   // [2][2][N], where the kernel has virials
    float4 *told_rows;                      // [2][N][WORDS], where it has uncertainties, as the next ones
    const float4 *root;                     // [SHARES][OWN_WORDS][INPUTS]
    float *last_inputs;                     // [N][LAST_INPUTS]
    double *system_doubts, *atom_doubts;    // [S], [N]: uncertainties of the energy
    float *kept;                            // [blocks][kept per block], or 0: in shared memory
    double *energies, *energy;
    float *forces; // 0: energies alone
    double *virial, *stress; // [S][9]; stress: 0 where it is not wanted
    // [3]: blocks started in all launches; whether any has given up waiting; steps of all launches beyond their first
    unsigned long long *counters;
    // Of a whole step. Coordinates in the caller's order, on the device or the host, or 0: then edges are given.
    const double *given, *given_cell;
    const int *order, *images;
    const double *origin, *far;
    double *places, *box, *kept_positions, *kept_cell; // kept: 0 where they are what is given
    float *rounded, *rounded_cell;
    int *num_edges;
    long long *needed;
    unsigned char *overflow, *invalid;
    long long *updates, *flags;
    double *energy_out, *energies_out, *forces_out, *output, *host_output; // energies_out: 0 where they are not wanted
    double *system_doubts_out, *atom_doubts_out; // in the caller's order; most_doubt: of an atom, for the flag
    const double *most_doubt;
    // Of dynamics, in the caller's order: state and constants as DeviceState has them; positions of the last step.
    double *state_positions, *state_velocities, *state_forces, *state_energy, *state_doubt, *state_largest, *moved;
    const double *inverse_masses, *masses, *counted, *held, *thermal, *motion;
    const long long *seeds, *place, *first_counted;
    long long *control;
    long long table_size;
    float gate_epsilon, read_epsilon, radius_squared;
    int to_host; // 0: nothing; 1: energy and flags; 2: all results
    int steps, thermostat; // of dynamics; 0 steps: one evaluation
    int num_atoms, num_systems, per, lanes, chunk, last_interval, wide_positions, wide_cell, wide_charge, slots,
        told_slots, edge_room, hears; // hears: whether a block has room for what all atoms tell
    int patience; // how often a block looks whether others have arrived before it gives up
};

// Shared memory of a block. What each atom keeps: columns of WIDE channels.
enum {
    KEEP_A,
    KEEP_MIXED,
    KEEP_X0, // the next four of this layer; then the same of others, and X of the last
    KEEP_Y0,
    KEEP_M0,
    KEEP_D0,
    KEEP_P0,
    A_LAYER = KEEP_P0 + 1 - KEEP_X0,
    KEEP_LAST = KEEP_X0 + A_LAYER * LAYERS,
    KEEP_TENSORS
};
// Then 1/(|X|^2+1) of the X that go into layers and of all P, and the gate. P: what a layer makes of Y and M, divided by
// |P|^2+1.
enum { KEEP_FLOATS = KEEP_TENSORS * NINE + 2 * LAYERS * WIDE + 3 * WIDE };
// Per atom, in shared memory: both buffers of the exchange, vectors, results of products and what is pushed, the head.
enum { PER_ATOM = 12, ROOM_FLOATS = 2 * 9 * C + 3 * C + 2 * C + C + 3 * NINE + 2 * WIDE + PER_ATOM + HEAD_ROOM };

// How atoms are divided, as constants where the kernel is compiled for one plan. Products then include the missing atoms
// of the last cluster, whose results nothing reads.
#ifdef ATOMS_PER_CLUSTER
#ifndef CHUNK // atoms of a product, of which a cluster has a multiple
#define CHUNK ATOMS_PER_CLUSTER
#endif
enum { SPECIAL = 1, IN_CHUNKS = CHUNK < ATOMS_PER_CLUSTER };
DEV int per_cluster(const Params &) { return ATOMS_PER_CLUSTER; }
DEV int lanes_of(const Params &) { return LANES; }
DEV int chunk_of(const Params &) { return CHUNK; }
DEV int rows_of(const Params &, int) { return ATOMS_PER_CLUSTER; }
#define EACH_ROW _Pragma("unroll")
#else
enum { SPECIAL = 0, IN_CHUNKS = 1 };
DEV int per_cluster(const Params &p) { return p.per; }
DEV int lanes_of(const Params &p) { return p.lanes; }
DEV int chunk_of(const Params &p) { return p.chunk; }
DEV int rows_of(const Params &, int atoms) { return atoms; }
#define EACH_ROW _Pragma("unroll 1")
#endif

// Steps of dynamics have a kernel of their own, so that evaluations have none of their code.
#ifdef VIRIALS_TOO
enum { VIRIALS = 1 };
#else
enum { VIRIALS = 0 };
#endif
#ifdef UNCERTAINTY_TOO
enum { UNCERTAIN = 1 };
#else
enum { UNCERTAIN = 0 };
#endif
#ifdef STEPS_INSIDE
enum { MOVES = 1 };
#else
enum { MOVES = 0 };
#endif
DEV bool makes_list(const Params &p) { return MOVES || p.given; }
// Whether a block reads what all atoms tell once, to shared memory, and not for each edge.
DEV bool hears_all(const Params &p) { return MOVES || p.hears; }
// Whether all edges of an atom are read ahead (`Near`), so that there is no code for others.
#ifdef NEAR_ONLY
enum { MAY_HAVE_OTHERS = 0 };
#else
enum { MAY_HAVE_OTHERS = 1 };
#endif

struct Block {
    const Params &p;
    int rank, cluster, first, atoms, col, lane, warp, tid, channel;
    const float *weights;
    double *stretch;
    int *counted; // in a whole step: edges of all atoms, and of those before this block's
    float *xa, *xb, *v1, *hidden, *features, *result, *stages, *stage, *elements, *per_atom, *vectors, *scratch, *kept,
        *edge_memory, *head;
    Edge *edges;
    float *pull;
    Particle *particles;
    float4 *heard; // of all atoms [N][3][WIDE]
    int first_edge, num_edges, clusters;
    unsigned launch;
    long long number; // of steps that a run has done
    Remote remote;

    MEMBER float *keep(int a, int which) const { return kept + a * KEEP_FLOATS + which * NINE; }
    MEMBER float *inverse(int a, int l) const { return kept + a * KEEP_FLOATS + KEEP_TENSORS * NINE + l * WIDE; }
    MEMBER float *gate(int a) const { return kept + a * KEEP_FLOATS + KEEP_TENSORS * NINE + 2 * LAYERS * WIDE; }
    // Of an atom: the factor of its system, statistics of the readout [4] and of the gate [2], energy of its element
    // (double), its edges, counted from the block's first.
    MEMBER float &factor(int a) const { return per_atom[PER_ATOM * a]; }
    MEMBER float *readout(int a) const { return per_atom + PER_ATOM * a + 1; }
    MEMBER float *gate_statistics(int a) const { return per_atom + PER_ATOM * a + 5; }
    MEMBER double &reference(int a) const { return *(double *)(per_atom + PER_ATOM * a + 8); }
    MEMBER int &first_of(int a) const { return *(int *)(per_atom + PER_ATOM * a + 10); }
    MEMBER int &end_of(int a) const { return *(int *)(per_atom + PER_ATOM * a + 11); }
    // The embedding of an atom's element as a target, and its pair with itself; of the block's channels.
    MEMBER float *as_target(int a) const { return elements + 2 * WIDE * a; }
    MEMBER float *with_itself(int a) const { return elements + 2 * WIDE * a + WIDE; }
    MEMBER const float *own(int set) const { return vectors + AT_OWN + 3 * WIDE * set + col; } // WIDE floats a part
};

DEV N9 load_own(const float *p)
{ // a column of [9][WIDE]
    N9 x;
#pragma unroll
    for (int k = 0; k < 9; k++) x.v[k] = p[k * WIDE];
    return x;
}
DEV void store_own(float *p, N9 x)
{
#pragma unroll
    for (int k = 0; k < 9; k++) p[k * WIDE] = x.v[k];
}
