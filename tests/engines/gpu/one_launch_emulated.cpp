// The kernel of one_launch.cu, emulated on one core.
#define EMULATED
#include "one_launch.cu"

static const Params *given;
static void one_thread() { evaluate(*given); }

extern "C" void launch(const Params *p, int clusters, int shared_bytes)
{
    given = p;
    run_grid(clusters * SHARES, THREADS, SHARES, shared_bytes, one_thread);
}

// What Python has to know as well.
extern "C" int constant(int which)
{
    const int values[] = {ROOM_FLOATS, KEEP_FLOATS, VECTORS, WEIGHTS, (int)sizeof(Params), (int)sizeof(Edge),
                          (int)sizeof(Particle) / 4};
    return values[which];
}
