// The uncertainty of energies (torchmdx/models/uncertainty.py), where the kernel has it: sigma = |f R| of each atom, and of
// the sum of f over a system. A block computes its share of the columns of R for the atoms of its cluster, where it would
// wait for the others, and tells them; one block sums at the end. It changes nothing that energies and forces depend on.
#pragma once
#include "one_launch_step.cuh"

// Inputs of the last layer: hidden channels, and 1 for the bias; of a gated head times the gate. In v1, until another
// exchange needs it: nothing is pushed there before all blocks have read it.
DEV float *inputs_of(const Block &b, int a) { return b.v1 + a * 3 * C; }
DEV void put_plain_inputs(const Block &b, int a)
{
    float *to = inputs_of(b, a);
#pragma unroll
    for (int h = 0; h < HEAD; h += 32)
        to[h + b.lane] = activate(b.result[a * HEAD + h + b.lane] + b.vectors[AT_HEAD_BIAS + h + b.lane]);
    if (b.lane == 0) to[INPUTS - 1] = 1.0f;
}

// Three numbers of f R in each of WORDS words of an atom.
DEV float4 *rows_told(const Block &b) { return b.p.told_rows + b.launch % 2 * (long long)b.p.num_atoms * WORDS; }
DEV void tell_rows(const Block &b)
{
    const Params &p = b.p;
    const float4 *root = p.root + b.rank * OWN_WORDS * INPUTS;
#pragma unroll 1
    for (int o = b.warp; o < b.atoms * OWN_WORDS; o += WARPS) {
        const int a = o / OWN_WORDS, word = o % OWN_WORDS;
        float sum[3] = {0, 0, 0};
#pragma unroll
        for (int h = 0; h < INPUTS; h += 32) {
            if (h + b.lane >= INPUTS) continue;
            const float4 w = weights4(root + word * INPUTS + h + b.lane);
            const float f = inputs_of(b, a)[h + b.lane];
            sum[0] += f * w.x, sum[1] += f * w.y, sum[2] += f * w.z;
        }
#pragma unroll
        for (int mask = 16; mask; mask >>= 1)
#pragma unroll
            for (int k = 0; k < 3; k++) sum[k] += exchange(sum[k], mask);
        if (b.lane == 0)
            tell(rows_told(b) + (long long)(b.first + a) * WORDS + b.rank * OWN_WORDS + word,
                 told(b, sum[0], sum[1], sum[2]));
    }
#pragma unroll 1
    for (int a = b.rank; a < b.atoms; a += SHARES)
#pragma unroll 1
        for (int h = b.tid; h < LAST_INPUTS; h += THREADS)
            p.last_inputs[(long long)(b.first + a) * LAST_INPUTS + h] =
                inputs_of(b, a)[h < LAST_INPUTS - 1 ? h : INPUTS - 1];
}

// f R of a system, a word by each lane, from atoms `first` on, by a warp; use(i, sigma): of its atoms. s < 0: of all atoms.
template <class Use> DEV void sum_rows(const Block &b, int s, int first, int step, double (&sum)[LANE_WORDS][3], Use use)
{
    enum { AT_ONCE = 4 };
    const Params &p = b.p;
#pragma unroll 1
    for (int base = first; base < p.num_atoms; base += AT_ONCE * step) {
        const float4 *from[AT_ONCE * LANE_WORDS];
        float4 heard[AT_ONCE * LANE_WORDS];
        bool any = false;
#pragma unroll
        for (int k = 0; k < AT_ONCE * LANE_WORDS; k++) {
            const int i = base + k / LANE_WORDS * step, word = b.lane + k % LANE_WORDS * 32;
            const bool own = i < p.num_atoms && (s < 0 || p.system[i] == s);
            from[k] = own && word < WORDS ? rows_told(b) + (long long)i * WORDS + word : 0, any = any || own;
        }
        if (!any) continue; // the same on all lanes
        hear(b, from, heard);
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            const int i = base + j * step;
            if (i >= p.num_atoms || (s >= 0 && p.system[i] != s)) continue;
            double square = 0;
#pragma unroll
            for (int k = 0; k < LANE_WORDS; k++) {
                const float4 v = heard[j * LANE_WORDS + k];
                sum[k][0] += v.x, sum[k][1] += v.y, sum[k][2] += v.z;
                square += (double)v.x * v.x + (double)v.y * v.y + (double)v.z * v.z;
            }
            square = over_warp(square);
            if (b.lane == 0) use(i, sqrt(square));
        }
    }
}

// The uncertainties of all atoms and systems, by use_atom(i, sigma) and use_system(s, sigma), by all threads of a block: one
// system by all warps, several by one warp each. It uses `scratch` after the first four numbers.
template <class Atom, class System> DEV void sum_all_rows(const Block &b, Atom use_atom, System use_system)
{
    const Params &p = b.p;
    const bool one = p.num_systems == 1;
    float *parts = b.scratch + 4; // what warps but the first have summed, [..][WORDS][3]
    auto finish = [&](int s, const double(&sum)[LANE_WORDS][3]) {
        double square = 0;
#pragma unroll
        for (int k = 0; k < LANE_WORDS; k++)
            square += sum[k][0] * sum[k][0] + sum[k][1] * sum[k][1] + sum[k][2] * sum[k][2];
        square = over_warp(square);
        if (b.lane == 0) use_system(s, sqrt(square));
    };
    __syncthreads();
#pragma unroll 1
    for (int s = one ? -1 : b.warp; s < (one ? 0 : p.num_systems); s += WARPS) {
        double sum[LANE_WORDS][3] = {};
        sum_rows(b, s, one ? b.warp : 0, one ? WARPS : 1, sum, use_atom);
        if (one) {
#pragma unroll
            for (int k = 0; k < LANE_WORDS; k++) {
                const int word = b.lane + 32 * k;
                float *to = parts + ((b.warp - 1) * WORDS + word) * 3;
                if (b.warp && word < WORDS)
                    to[0] = (float)sum[k][0], to[1] = (float)sum[k][1], to[2] = (float)sum[k][2];
            }
            __syncthreads();
            if (b.warp) break;
#pragma unroll 1
            for (int w = 0; w < WARPS - 1; w++)
#pragma unroll
                for (int k = 0; k < LANE_WORDS; k++) {
                    const int word = b.lane + 32 * k;
                    const float *from = parts + (w * WORDS + word) * 3;
                    if (word < WORDS) sum[k][0] += from[0], sum[k][1] += from[1], sum[k][2] += from[2];
                }
        }
        finish(one ? 0 : s, sum);
    }
    __syncthreads();
}

// Whether the uncertainty of any atom is above the limit, on the threads that find one; every block looks at all atoms.
DEV bool is_doubtful(const Block &b)
{
    const double most = *b.p.most_doubt;
    bool above = false;
    double sum[LANE_WORDS][3] = {};
    if (most - most == 0) sum_rows(b, -1, b.warp, WARPS, sum, [&](int, double sigma) { above = above || sigma > most; });
    return above;
}

// In the buffers and, in a whole step, among its results, in the caller's order.
DEV void give_uncertainties(const Block &b)
{
    const Params &p = b.p;
    const long long to_host = p.host_output - p.output;
    int *above = (int *)b.scratch; // atoms above the limit
    __syncthreads();
    if (b.tid == 0) *above = 0;
    sum_all_rows(
        b,
        [&](int i, double sigma) {
            p.atom_doubts[i] = sigma;
            if (!makes_list(p)) return;
            const int atom = p.order[i];
            p.atom_doubts_out[atom] = sigma;
            if (p.to_host > 1) p.atom_doubts_out[to_host + atom] = sigma;
            if (sigma > *p.most_doubt) add_to(above, 1);
        },
        [&](int s, double sigma) {
            p.system_doubts[s] = sigma;
            if (!makes_list(p)) return;
            p.system_doubts_out[s] = sigma;
            if (p.to_host) p.system_doubts_out[to_host + s] = sigma;
        });
    if (makes_list(p) && b.tid == 0) {
        p.flags[DOUBTFUL] = *above;
        if (p.to_host) p.flags[to_host + DOUBTFUL] = *above;
    }
}

// Of steps of dynamics, the uncertainties of the last good step: of energies, and the largest one of an atom. The words of
// the step before one that has halted have not been overwritten.
DEV void keep_uncertainties(Block &b, bool halted)
{
    const Params &p = b.p;
    if (halted) {
        b.launch--;
        sum_all_rows(
            b, [&](int i, double sigma) { p.atom_doubts[i] = sigma; },
            [&](int s, double sigma) { p.system_doubts[s] = sigma; });
    }
#pragma unroll 1
    for (int s = b.tid; s < p.num_systems; s += THREADS) {
        double most = 0;
#pragma unroll 1
        for (int i = 0; i < p.num_atoms; i++)
            if (p.num_systems == 1 || p.system[i] == s) most = fmax(most, p.atom_doubts[i]);
        p.state_doubt[s] = p.system_doubts[s], p.state_largest[s] = most;
    }
}

// The block that gives them has least to do.
DEV bool gives_uncertainties(const Block &b) { return b.cluster == b.clusters - 1 && b.rank == 2; }
