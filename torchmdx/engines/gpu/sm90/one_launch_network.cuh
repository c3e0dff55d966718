// The network that one_launch.cu evaluates, where macros say that it is another than the usual one. Others take the usual
// one.
#pragma once
#ifndef NETWORK_LAYERS
#define NETWORK_LAYERS 2
#endif
#ifndef NETWORK_CHANNELS
#define NETWORK_CHANNELS 128
#endif
#ifndef HIDDEN_LAYERS
#define HIDDEN_LAYERS 1
#endif
#ifndef GATED_HEAD
#define GATED_HEAD 0
#endif
#ifndef REFLECTIONS
#define REFLECTIONS 1
#endif
#ifndef READOUT_ACTIVATION
#define READOUT_ACTIVATION 1
#endif
#ifndef GATHERS // whether messages carry the tensors of neighbours, not those of the atom that receives them
#define GATHERS 1
#endif
#ifndef ACTIVATION
#define ACTIVATION 0
#endif

enum { LAYERS = NETWORK_LAYERS, USED = NETWORK_CHANNELS, HIDDEN = HIDDEN_LAYERS };
// Floats per thread of the head's weights, one way: of a plain head the first layer, and each of the others. A gated head
// has two networks of C channels, of which a block computes its own.
enum {
    HEAD_WEIGHTS = GATED_HEAD ? 8 * HIDDEN : 16,
    MORE_WEIGHTS = GATED_HEAD ? 0 : 8 * (HIDDEN - 1),
    // Biases of hidden layers: of a plain head the last one first, of a gated head of the block's own channels; last weights.
    HEAD_BIASES = GATED_HEAD ? 2 * WIDE * HIDDEN : HEAD * HIDDEN,
    HEAD_LASTS = GATED_HEAD ? 2 * C : HEAD,
    // Of an atom, hidden layers before the last, before their activations.
    HEAD_ROOM = (HIDDEN - 1) * (GATED_HEAD ? 2 * WIDE : HEAD)
};
// Inputs of the last layer with that of the bias: in memory, and of the network. Three of the numbers that an uncertainty is
// made of are in a word: words of a block, of the cluster, and of a lane of a warp.
enum {
    INPUTS = (GATED_HEAD ? C : HEAD) + 1,
    LAST_INPUTS = (GATED_HEAD ? USED : USED / 2) + 1,
    OWN_WORDS = (INPUTS + 3 * SHARES - 1) / (3 * SHARES),
    WORDS = SHARES * OWN_WORDS,
    LANE_WORDS = (WORDS + 31) / 32
};

// The activation by its number in torchmdx/engines/gpu/one_launch.py, and its slope.
DEV float activate(float z)
{
    if (ACTIVATION == 0) return silu(z);
    if (ACTIVATION == 1) return fmaxf(z, 0.0f) + log1pf(expf(-fabsf(z))) - 0.69314718f;
    if (ACTIVATION == 2) return tanhf(z);
    if (ACTIVATION == 3) return sigmoid(z);
    return z * tanhf(fmaxf(z, 0.0f) + log1pf(expf(-fabsf(z)))); // mish
}
DEV float slope_at(float z)
{
    if (ACTIVATION == 0) return silu_slope(z);
    if (ACTIVATION == 1) return sigmoid(z);
    if (ACTIVATION == 2) return 1.0f - tanhf(z) * tanhf(z);
    if (ACTIVATION == 3) return sigmoid(z) * sigmoid(-z);
    const float t = tanhf(fmaxf(z, 0.0f) + log1pf(expf(-fabsf(z))));
    return t + z * (1.0f - t * t) * sigmoid(z);
}
// Of the features.
DEV float activate_feature(float z) { return READOUT_ACTIVATION ? activate(z) : z; }
DEV float feature_slope(float z) { return READOUT_ACTIVATION ? slope_at(z) : 1.0f; }
