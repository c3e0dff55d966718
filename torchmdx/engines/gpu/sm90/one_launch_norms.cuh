// LayerNorms, whose backward pass needs no sums of its own, the head, and loops over the block's own channels.
#pragma once
#include "one_launch_products.cuh"

// Mean and 1/deviation of COUNT numbers of an atom by one warp, of C channels of which USED are not zero; the numbers,
// standardised, scaled and moved, in `to`.
template <int COUNT>
DEV void standardise(const Block &b, const float *x, const float *scale, const float *offset, float epsilon, float *to,
                     float *statistics)
{
    float v[COUNT / 32], sum = 0, square = 0;
#pragma unroll
    for (int k = 0; k < COUNT / 32; k++) sum += v[k] = x[b.lane + 32 * k];
#pragma unroll
    for (int mask = 16; mask; mask >>= 1) sum += exchange(sum, mask);
    const float part = 1.0f / (COUNT / C * USED), mean = sum * part;
#pragma unroll
    for (int k = 0; k < COUNT / 32; k++) {
        v[k] -= mean;
        square += USED == C || (b.lane + 32 * k) % C < USED ? v[k] * v[k] : 0;
    }
#pragma unroll
    for (int mask = 16; mask; mask >>= 1) square += exchange(square, mask);
    const float inverse = rsqrtf(square * part + epsilon);
#pragma unroll
    for (int k = 0; k < COUNT / 32; k++)
        to[b.lane + 32 * k] = v[k] * inverse * scale[b.lane + 32 * k] + offset[b.lane + 32 * k];
    if (b.lane == 0) statistics[0] = mean, statistics[1] = inverse;
}

// Means of the gradient in standardised numbers, 1 / `part` of them, and of its product with them, from the gradient g
// [COUNT] in what a linear map made of them, z [COUNT].
template <int COUNT>
DEV void back_statistics(const Block &b, const float *g, const float *z, const float *level, const float *shift,
                         float *means, float part)
{
    float sum = 0, along = 0;
#pragma unroll
    for (int k = 0; k < COUNT; k += 32) {
        const float gk = g[b.lane + k];
        sum += gk * level[b.lane + k], along += gk * (z[b.lane + k] - shift[b.lane + k]);
    }
#pragma unroll
    for (int mask = 16; mask; mask >>= 1) sum += exchange(sum, mask), along += exchange(along, mask);
    if (b.lane == 0) means[0] = sum * part, means[1] = along * part;
}

// A lane's part of the head's output for an atom, from `result`; the gradient in the hidden layer, scaled, in `stage`.
DEV double head_output(const Block &b, int a, float scale)
{
    double output = 0;
#pragma unroll
    for (int h = 0; h < HEAD; h += 32) {
        const float z = b.result[a * HEAD + h + b.lane] + b.vectors[AT_HEAD_BIAS + h + b.lane],
                    last = b.vectors[AT_HEAD_LAST + h + b.lane];
        output += (double)(activate(z) * last);
        b.stage[a * HEAD + h + b.lane] = slope_at(z) * last * scale;
    }
    return output;
}

#define EACH_OWN(a)                                                                                                    \
    _Pragma("unroll 1") for (int own_ = b.tid, a = own_ / WIDE; own_ < b.atoms * WIDE; own_ += THREADS, a = own_ / WIDE)
