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

// An atom's uncertainty, in the buffers and, in a whole step, among its results.
DEV void give_uncertainty(const Block &b, int i, double sigma)
{
    const Params &p = b.p;
    p.atom_doubts[i] = sigma;
    if (!makes_list(p)) return;
    const int atom = p.order[i];
    p.atom_doubts_out[atom] = sigma;
    if (p.to_host > 1) p.atom_doubts_out[p.host_output - p.output + atom] = sigma;
    if (sigma > *p.most_doubt) add_to((int *)b.scratch, 1);
}

// f R of a system, a word by each lane, and the uncertainties of its atoms from `first` on; by a warp.
DEV void sum_rows(const Block &b, int s, int first, int step, double (&sum)[LANE_WORDS][3])
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
            const bool own = i < p.num_atoms && (p.num_systems == 1 || p.system[i] == s);
            from[k] = own && word < WORDS ? rows_told(b) + (long long)i * WORDS + word : 0, any = any || own;
        }
        if (!any) continue; // the same on all lanes
        hear(b, from, heard);
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            const int i = base + j * step;
            if (i >= p.num_atoms || (p.num_systems > 1 && p.system[i] != s)) continue;
            double square = 0;
#pragma unroll
            for (int k = 0; k < LANE_WORDS; k++) {
                const float4 v = heard[j * LANE_WORDS + k];
                sum[k][0] += v.x, sum[k][1] += v.y, sum[k][2] += v.z;
                square += (double)v.x * v.x + (double)v.y * v.y + (double)v.z * v.z;
            }
#pragma unroll
            for (int mask = 16; mask; mask >>= 1) square += exchange(square, mask);
            if (b.lane == 0) give_uncertainty(b, i, sqrt(square));
        }
    }
}

// From f R of a system, by a warp.
DEV void give_uncertainty_of_system(const Block &b, int s, const double (&sum)[LANE_WORDS][3])
{
    const Params &p = b.p;
    double square = 0;
#pragma unroll
    for (int k = 0; k < LANE_WORDS; k++)
        square += sum[k][0] * sum[k][0] + sum[k][1] * sum[k][1] + sum[k][2] * sum[k][2];
#pragma unroll
    for (int mask = 16; mask; mask >>= 1) square += exchange(square, mask);
    if (b.lane) return;
    const double sigma = sqrt(square);
    p.system_doubts[s] = sigma;
    if (!makes_list(p)) return;
    p.system_doubts_out[s] = sigma;
    if (p.to_host) p.system_doubts_out[p.host_output - p.output + s] = sigma;
}

// By all threads of a block that has least to do: the atoms of one system by all warps, other systems by one warp each.
DEV bool sums_rows(const Block &b) { return b.cluster == b.clusters - 1 && b.rank == 2; }
DEV void sum_uncertainties(const Block &b)
{
    const Params &p = b.p;
    const bool one = p.num_systems == 1;
    int *above = (int *)b.scratch; // atoms above the limit; behind it what warps have summed but the first, [..][WORDS][3]
    float *parts = b.scratch + 4;
    __syncthreads();
    if (b.tid == 0) *above = 0;
    __syncthreads();
    double sum[LANE_WORDS][3] = {};
    if (one) {
        sum_rows(b, 0, b.warp, WARPS, sum);
        if (b.warp)
#pragma unroll
            for (int k = 0; k < LANE_WORDS; k++) {
                const int word = b.lane + 32 * k;
                float *to = parts + ((b.warp - 1) * WORDS + word) * 3;
                if (word < WORDS) to[0] = (float)sum[k][0], to[1] = (float)sum[k][1], to[2] = (float)sum[k][2];
            }
    } else
#pragma unroll 1
        for (int s = b.warp; s < p.num_systems; s += WARPS) {
            double own[LANE_WORDS][3] = {};
            sum_rows(b, s, 0, 1, own);
            give_uncertainty_of_system(b, s, own);
        }
    __syncthreads();
    if (b.warp) return;
    if (one) {
#pragma unroll
        for (int k = 0; k < LANE_WORDS; k++)
            if (b.lane + 32 * k < WORDS)
#pragma unroll 1
                for (int w = 0; w < WARPS - 1; w++) {
                    const float *from = parts + (w * WORDS + b.lane + 32 * k) * 3;
                    sum[k][0] += from[0], sum[k][1] += from[1], sum[k][2] += from[2];
                }
        give_uncertainty_of_system(b, 0, sum);
    }
    if (makes_list(p) && b.lane == 0) {
        p.flags[DOUBTFUL] = *above;
        if (p.to_host) p.flags[p.host_output - p.output + DOUBTFUL] = *above;
    }
}
