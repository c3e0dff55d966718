// The kernels of charged_cluster.cu, emulated on one core.
#define EMULATED
#include "charged_cluster.cu"

static const Given *given;
static void embed_thread() { embed(*given); }
static void middle_thread() { middle(*given); }
static void layer_thread() { layer(*given); }
static void last_thread() { last(*given); }
static void output_thread() { middle_gradient<true>(*given); }
static void middle_gradient_thread() { middle_gradient<false>(*given); }
static void gradient_thread() { gradient(*given); }

extern "C" void launch(const Given *g, int which, int clusters, int shared_bytes)
{
    void (*const functions[])() = {embed_thread,  middle_thread,          layer_thread,   last_thread,
                                   output_thread, middle_gradient_thread, gradient_thread};
    given = g;
    run_grid(clusters * SHARES, THREADS, SHARES, shared_bytes, functions[which]);
}

extern "C" void cutoff(float r, float c, float *values)
{
    const float2 both = cosine_cut(r, c);
    values[0] = both.x, values[1] = both.y;
}

// What Python has to know as well.
extern "C" int constant(int which)
{
    const int values[] = {ALL_WEIGHTS,          CHARGE_VECTORS,     VECTORS,    (int)sizeof(Params), (int)sizeof(Charged),
                          (int)sizeof(Given), ROOM_OF_A_BLOCK};
    return values[which];
}
