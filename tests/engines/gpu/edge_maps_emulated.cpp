// The kernels of edge_maps.cu, emulated on one core.
#define EMULATED
#include "edge_maps.cu"

static const Params *given;
template <bool SLOPES> static void forward_thread() { forward<SLOPES>(*given); }
template <bool SLOPES> static void backward_thread() { backward<SLOPES>(*given); }

// which: 0 forward, 1 backward; 2, 3: with slopes.
extern "C" void launch(const Params *p, int which, int clusters, int shared_bytes)
{
    void (*const functions[])() = {forward_thread<false>, backward_thread<false>, forward_thread<true>, backward_thread<true>};
    given = p;
    run_grid(2 * clusters, THREADS, 2, shared_bytes, functions[which]);
}

// What Python has to know as well.
extern "C" int constant(int which)
{
    const int values[] = {STAGE, THREADS, ROWS, FORWARD_PER_TILE, BACKWARD_PER_TILE, SLOPES_PER_TILE, (int)sizeof(Params),
                          FORWARD_BYTES, BACKWARD_BYTES};
    return values[which];
}
