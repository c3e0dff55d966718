// The kernels of charged_maps.cu, emulated on one core.
#define EMULATED
#include "charged_maps.cu"

static const Maps *given;
static void forth_thread() { maps_forth(*given); }
static void messages_thread() { messages_back(*given); }
static void back_thread() { maps_back(*given); }
static void charges_thread() { charges_back(*given); }

extern "C" void launch(const Maps *p, int which, int clusters, int shared_bytes)
{
    void (*const functions[])() = {forth_thread, messages_thread, back_thread, charges_thread};
    given = p;
    run_grid(clusters * SHARES, THREADS, SHARES, shared_bytes, functions[which]);
}

extern "C" void cutoff(float r, float c, float *values) { cosine_cut(r, c, values[0], values[1]); }

// What Python has to know as well.
extern "C" int constant(int which)
{
    const int values[] = {MAP_WEIGHTS,     (int)sizeof(Maps),  4 * FORTH_FLOATS, 4 * MESSAGES_FLOATS,
                          4 * BACK_FLOATS, 4 * CHARGES_FLOATS, ROWS};
    return values[which];
}
