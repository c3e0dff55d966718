// The kernel of charged_launch.cu, emulated on one core.
#define EMULATED
#include "charged_launch.cu"

static const Launch *given;
static void one_thread() { evaluate_charged(*given); }

extern "C" void launch(const Launch *l, int clusters, int shared_bytes)
{
    given = l;
    run_grid(clusters * SHARES, THREADS, SHARES, shared_bytes, one_thread);
}

// What Python has to know as well.
extern "C" int constant(int which)
{
    const int values[] = {MAP_QUADS, MAP_VECTORS, ROW_IN_XA, ROW_IN_XB, ROW_OF_STAGES, SCRATCH_OF_MAPS, MOST_LAYERS, (int)sizeof(Launch)};
    return values[which];
}
