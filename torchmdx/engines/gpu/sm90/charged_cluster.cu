// TensorNet2 of few atoms: what concerns atoms one by one, in kernels between which others work on edges
// (charged_atom.py). Clusters do not wait for each other.
//
//     embed: edges, embedding, X and Y, what the charges' network makes of X
//     middle: messages to X and Y of the next layer, and what the charges' network makes of X
//     layer: messages to the energy, and back to the gradients in messages and Y
//     last: messages to the energy and the gradient in X, and what the charges' network makes of X
//     output: gradients in the charges after the last layer and in X to those in its messages and Y
//     middle_gradient: those in charges, Y and X to those in messages and Y of the layer before
//     gradient: those in charges, Y and X to that of every edge
#include "charged_cluster_stages.cuh"

#ifndef EMULATED
// Each kernel is compiled by itself: NAME, which calls KERNEL, one of the functions above.
extern "C" __global__ void __launch_bounds__(THREADS, 1) NAME(const __grid_constant__ Given given) { KERNEL(given); }
#endif
