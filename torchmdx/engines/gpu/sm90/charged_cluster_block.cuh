// Sizes, what the caller passes, and what a block of the stages of charged_cluster_stages.cuh has in shared memory;
// exchanges.
#pragma once
#include "one_launch_edges.cuh"
#include "one_launch_norms.cuh"

enum { K = 16 }; // sets of charges

// Of loops that few threads repeat: in the kernel with all stages, whose code is large, they are not unrolled.
#ifdef ALL_STAGES
#define ROLLED _Pragma("unroll 1")
#else
#define ROLLED
#endif

// Floats per thread of each product's weights in the order in which they lie in memory.
enum {
    IN_GATE = 0,
    IN_MIX = IN_GATE + 8,
    IN_GATE_OUT = IN_MIX + 12,
    IN_SEND = IN_GATE_OUT + 24,
    IN_FIRST = IN_SEND + 12,
    IN_SECOND = IN_FIRST + 12,
    IN_THIRD = IN_SECOND + 4,
    IN_RECEIVE = IN_THIRD + 8,
    IN_READ = IN_RECEIVE + 12,
    IN_HEAD = IN_READ + 12,
    IN_HEAD_BACK = IN_HEAD + 16,
    IN_READ_BACK = IN_HEAD_BACK + 16,
    IN_RECEIVE_BACK = IN_READ_BACK + 12,
    IN_THIRD_BACK = IN_RECEIVE_BACK + 12,
    IN_SECOND_BACK = IN_THIRD_BACK + 4,
    IN_FIRST_BACK = IN_SECOND_BACK + 4,
    IN_SEND_BACK = IN_FIRST_BACK + 12,
    IN_GATE_OUT_BACK = IN_SEND_BACK + 12,
    IN_MIX_BACK = IN_GATE_OUT_BACK + 24,
    IN_GATE_BACK = IN_MIX_BACK + 12,
    ALL_WEIGHTS = IN_GATE_BACK + 8
};
// Vectors of the charges' network: its LayerNorm, sums for its backward pass, biases; the last two of the own channels.
enum {
    OF_SCALE = 0,
    OF_OFFSET = OF_SCALE + 3 * C,
    OF_LEVEL = OF_OFFSET + 3 * C,
    OF_SHIFT = OF_LEVEL + C,
    OF_THIRD = OF_SHIFT + C,
    OF_FIRST = OF_THIRD + 2 * K,
    OF_SECOND = OF_FIRST + WIDE,
    CHARGE_VECTORS = OF_SECOND + WIDE
};

// Buffers of the other kernels, see buffers.py and charge_buffers.py; N atoms, E edges. statistics [N,4]: mean and
// 1/deviation of the gate's LayerNorm and of the charges'. x, y: of the layer before; next_x, next_inverse, next_y: what
// goes into the next one. pull [pull_parts][E]. gm: M, then its gradient. The head's hidden layers beyond the first:
// head_weights [more_head][2][2][THREADS][4], forward and back, head_biases [more_head][HEAD] of those before them.
struct Charged {
    const float *weights;        // [SHARES][ALL_WEIGHTS / 4][THREADS][4]
    const float *charge_vectors; // [SHARES][CHARGE_VECTORS]
    int *knot;
    float *place, *lengths, *a, *hidden, *gate, *mixed, *x, *y, *gy, *gm, *g, *z3;
    float *next_x, *next_inverse, *next_y, *d;
    const float *head_weights, *head_biases;
    float *first, *second, *proposed, *gq, *statistics, *pull, *half;
    float charge_epsilon, cutoff, least, slack;
    int more_head, pull_parts;
};
struct Given {
    Params common;
    Charged own;
};

// An exchange of what is in `stage`, as in one_launch.cu. Nothing may be pushed to memory that a block has read since the
// exchange before: another may be ahead by one.
#define BEGIN_EXCHANGE(bytes)                                                                                          \
    before_push();                                                                                                     \
    __syncthreads();                                                                                                   \
    if (b.tid == 0) expect(turn, bytes);
#define END_EXCHANGE b.stage = b.stages + (turn + 1) % 2 * per_cluster(p) * NINE;
#define EXCHANGE(to, rows, width, stride)                                                                              \
    BEGIN_EXCHANGE((rows) * b.atoms * SHARES * (width) * 4)                                                            \
    push<width, rows>(b, b.stage, to, stride, turn);                                                                   \
    END_EXCHANGE
#define EXCHANGE_NINES(to)                                                                                             \
    BEGIN_EXCHANGE(b.atoms * SHARES * NINE * 4)                                                                        \
    push_nines(b, b.stage, to, turn);                                                                                  \
    END_EXCHANGE
#define EXCHANGE_NINES_AND(to, from, to_rows, rows)                                                                    \
    BEGIN_EXCHANGE((9 + (rows)) * b.atoms * SHARES * WIDE * 4)                                                         \
    push<WIDE, rows>(b, from, to_rows, C, turn);                                                                       \
    push_nines(b, b.stage, to, turn);                                                                                  \
    END_EXCHANGE

// Memory of a block in addition to that of `Block`: three numbers a channel of every atom, from the cluster and of its own.
struct Rooms {
    float *three, *extra, *vectors;
};

// Floats of a block's shared memory without edges.
enum {
    ROOM_OF_A_BLOCK = ATOMS_PER_CLUSTER * (ROOM_FLOATS + KEEP_FLOATS + 3 * C + 3 * WIDE) + VECTORS + CHARGE_VECTORS +
                      STRETCH + (WARPS > LANES ? WARPS : LANES) * ATOMS_PER_CLUSTER * NINE
};

// The weights of a stage: matrices from memory, vectors in shared memory.
DEV void take_weights(Block &b, const Rooms &rooms, const Charged &q)
{
    b.weights = q.weights + (long long)b.rank * ALL_WEIGHTS * THREADS;
    const float4 *vectors = (const float4 *)(q.charge_vectors + b.rank * CHARGE_VECTORS);
    ROLLED for (int k = b.tid; k < CHARGE_VECTORS / 4; k += THREADS) ((float4 *)rooms.vectors)[k] = vectors[k];
}

// In floats, at least: of scratch memory, and of the two rooms that tensors of nine are pushed to.
DEV Rooms begin(Block &b, const Charged &q, int least_scratch = 0, int least_xa = 0, int least_xb = 0)
{
    const Params &p = b.p;
    b.rank = block_rank(), b.cluster = blockIdx.x / SHARES, b.clusters = gridDim.x / SHARES;
    b.tid = threadIdx.x, b.lane = b.tid % 32, b.warp = b.tid / 32, b.col = b.tid % WIDE;
    b.channel = b.rank * WIDE + b.col;
    b.first = b.cluster * per_cluster(p), b.atoms = max(0, min(per_cluster(p), p.num_atoms - b.first));
    b.first_edge = b.num_edges = 0;
    Rooms rooms;
    float *at = shared_base();
    b.v1 = at, at += per_cluster(p) * 3 * C;
    b.hidden = at, at += per_cluster(p) * 2 * C;
    b.features = at, at += per_cluster(p) * C;
    b.result = at, at += per_cluster(p) * NINE;
    b.stages = b.stage = at, at += 2 * per_cluster(p) * NINE;
    b.kept = at, at += per_cluster(p) * KEEP_FLOATS;
    b.elements = at, at += per_cluster(p) * 2 * WIDE;
    b.per_atom = at, at += per_cluster(p) * PER_ATOM;
    rooms.three = at, at += per_cluster(p) * 3 * C;
    rooms.extra = at, at += per_cluster(p) * 3 * WIDE;
    b.vectors = at, at += VECTORS;
    rooms.vectors = at, at += CHARGE_VECTORS;
    b.stretch = (double *)at, b.counted = (int *)(b.stretch + 5), at += STRETCH;
    b.scratch = at;
    at += max(max(WARPS * min(chunk_of(p), per_cluster(p)), lanes_of(p) * per_cluster(p)) * NINE, least_scratch);
    // Behind what lies at places that the compiler knows.
    b.xa = at, at += max(per_cluster(p) * 9 * C, least_xa);
    b.xb = at, at += max(per_cluster(p) * 9 * C, least_xb);
    b.edge_memory = at;
    prepare_exchanges();
    b.remote = remote_of((b.warp + b.rank) % SHARES);
    prepare(b);
    take_weights(b, rooms, q);
    __syncthreads();
    all_prepared();
    return rooms;
}

// Other blocks may still copy this block's memory.
DEV void end()
{
    leave_step();
    all_prepared();
}

// Nine components of this thread's channel of an atom, in a tensor [N,9,C] of all.
DEV N9 load_nine(const float *from, int i, int channel)
{
    N9 x;
#pragma unroll
    for (int k = 0; k < 9; k++) x.v[k] = from[(9LL * i + k) * C + channel];
    return x;
}
DEV void store_nine(float *to, int i, int channel, const N9 &x)
{
#pragma unroll
    for (int k = 0; k < 9; k++) to[(9LL * i + k) * C + channel] = x.v[k];
}

// The gradient in one of the numbers that a LayerNorm standardised, from that in its scaled result.
DEV float through_norm(float scaled, float number, const float *statistics, const float *means)
{
    return statistics[1] * (scaled - means[0] - (number - statistics[0]) * statistics[1] * means[1]);
}

// What the charges' network reads of X: s, |a|^2, |q|^2.
DEV void charge_numbers(const N9 &x, float *numbers) { part_norms(x, numbers), numbers[0] = x.v[0]; }
