// The kernels of atom_tiles.cu, emulated on one core.
#define EMULATED
#include "atom_tiles.cu"

static const Params *given;
static void (*chosen)(const Params &, const Tile &);
static void one_thread()
{
    if (has_atoms(*given)) chosen(*given, shared_tile());
}

extern "C" void launch(const Params *p, int which, int blocks, int shared_bytes)
{
    void (*const all[])(const Params &, const Tile &) = {
        embedded, next_layer, last_layer, last_layer_gradient, next_layer_gradient, embedded_gradient};
    given = p, chosen = all[which];
    run_grid(blocks, THREADS, 1, shared_bytes, one_thread);
}
extern "C" int size_of_params() { return sizeof(Params); }
