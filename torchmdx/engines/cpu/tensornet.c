/* TensorNet's energy, forces and virial in one call: weights and a neighbour list in, results out.

   The code of one evaluation is compiled for several instruction sets, and the machine chooses at run time. */

#include "tensornet.h"
#include <sched.h>

/* Returns when all threads have finished a phase. */
static void wait_for_all(struct work *w, int64_t phase)
{
    atomic_fetch_add(&w->arrived[phase], 1);
    for (long k = 0; atomic_load_explicit(&w->arrived[phase], memory_order_acquire) < w->participants; k++) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
        if (k > 10000) sched_yield(); /* its processor may be taken by another program */
    }
}

#define NAME IN_SET
#define EACH "../engines/cpu/tensornet_each.h"
#include "../../runtime/instructions.h"

typedef void (*runner)(struct work *, int64_t);

/* The number of the instruction set to use, at most `most`. */
int64_t tensornet_instructions(int64_t most) { return best_instructions(most); }

/* The cutoff function of TensorNet2 and its derivative divided by it, for a comparison with that of the models. */
void tensornet_cutoff(double r, double cutoff, REAL *values) { cosine_cut(r, cutoff, values, values + 1); }

static runner runner_for(int64_t instructions, int charged)
{
#if defined(__x86_64__)
    if (instructions == 2) return charged ? run2_v4 : run_v4;
    if (instructions == 1) return charged ? run2_v3 : run_v3;
#endif
    (void)instructions;
    return charged ? run2_base : run_base;
}

static char *take(char **next, int64_t bytes)
{
    char *here = *next;
    *next += (bytes + 63) / 64 * 64;
    return here;
}

#include "tensornet2_memory.c"

/* Divides the scratch memory; returns its size. */
static int64_t divide(struct work *w)
{
    const struct model *model = w->model;
    const struct call *call = w->call;
    char *next = call->scratch;
    const int64_t slots = call->capacity, layers = model->layers, four = sizeof(int32_t), real = sizeof(REAL);
    w->blocks = (call->atoms + call->block - 1) / call->block;
    w->block1 = model->slices * call->block * SLICE;
    w->block9 = 9 * w->block1;
    struct edges *e = &w->edges;
    e->count = (int32_t *)take(&next, call->atoms * four);
    int32_t **integers[] = {&e->source, &e->slot, &e->knot, &e->place, &e->element};
    for (int k = 0; k < 5; k++) *integers[k] = (int32_t *)take(&next, slots * four);
    REAL **reals[] = {&e->t, &e->direction, &e->stretch, &e->inverse, &e->half};
    const int64_t width[] = {1, 8, 1, 1, 3};
    for (int k = 0; k < 5; k++) *reals[k] = (REAL *)take(&next, width[k] * slots * real);
    e->slope = (double *)take(&next, slots * 8);
    struct tensors *t = &w->tensors;
    t->virials = (double *)take(&next, 9 * call->atoms * 8);
    const int64_t nine = w->blocks * w->block9 * real, one = w->blocks * w->block1 * real;
    REAL **nines[] = {&t->a, &t->mixed, &t->gx, &t->gy, &t->x[layers]};
    for (int k = 0; k < 5; k++) *nines[k] = (REAL *)take(&next, nine);
    t->hidden = (REAL *)take(&next, 2 * one);
    t->gate = (REAL *)take(&next, 3 * one);
    for (int64_t l = 0; l < layers; l++) {
        REAL **each[] = {&t->x[l], &t->y[l], &t->m[l], &t->d[l]};
        for (int k = 0; k < 4; k++) *each[k] = (REAL *)take(&next, nine);
        t->inverse[l] = (REAL *)take(&next, one);
    }
    const int64_t wide = 10 * model->slices + model->head_networks * model->head_layers * model->head_slices;
    w->room_reals = 2 * w->block9 + wide * call->block * SLICE;
    w->room_bytes = (w->room_reals * real + 127) / 64 * 64;
    if (model->charges) next = divide_charges(w, next);
    w->room = take(&next, call->threads * w->room_bytes);
    return next - call->scratch;
}

/* Bytes of scratch memory for an evaluation, of which only atoms, capacity, block and threads are read. */
int64_t tensornet_scratch(const struct model *model, struct call *call)
{
    struct work w = {.model = model, .call = call};
    call->scratch = 0;
    return divide(&w);
}

/* Energies, with each atom's part of the potential's shift, and the symmetric part of the virial. */
static void total(const struct work *w)
{
    const struct call *call = w->call;
    int64_t i = 0;
    for (int64_t s = 0; s < call->systems; s++) {
        int64_t end = i;
        while (end < call->atoms && call->system[end] == s) end++;
        double energy = 0, virial[9] = {0};
        const double share = end > i ? w->model->shift / (double)(end - i) : 0;
        for (; i < end; i++) {
            call->energies[i] += share;
            energy += call->energies[i];
            if (call->stress)
                for (int k = 0; k < 9; k++) virial[k] += w->tensors.virials[9 * i + k];
        }
        call->energy[s] = energy;
        if (call->stress)
            for (int k = 0; k < 9; k++) call->virial[9 * s + k] = 0.5 * (virial[k] + virial[k % 3 * 3 + k / 3]);
    }
}

struct team {
    struct work *work;
    runner run;
    int (*number)(void), (*size)(void);
    atomic_int ready;
};

static void share(void *data)
{
    struct team *team = data;
    const int64_t thread = team->number(), size = team->size();
    if (thread == 0) {
        if (size < team->work->participants) team->work->participants = size;
        atomic_store(&team->ready, 1);
    } else
        while (!atomic_load(&team->ready)) sched_yield();
    if (thread < team->work->participants) team->run(team->work, thread);
}

/* One evaluation. parallel, number, size: GOMP_parallel, omp_get_thread_num and omp_get_num_threads of an OpenMP that
   is loaded already, or 0. All of its threads are asked for, as by torch: another number would make it end some, and
   start them anew for torch's next operation. Returns the number of a TensorNet2's rows: if it is more than
   call->rows, there are no results. */
int64_t tensornet_run(const struct model *model, const struct call *call, int64_t instructions,
                   void (*parallel)(void (*)(void *), void *, unsigned, unsigned), int (*number)(void),
                   int (*size)(void))
{
    struct work w = {.model = model, .call = call};
    divide(&w);
    w.participants = call->threads < w.blocks ? call->threads : w.blocks;
    const runner run = runner_for(instructions, model->charges != 0);
    if (w.participants > 1 && parallel) {
        struct team team = {&w, run, number, size, 0};
        parallel(share, &team, 0, 0);
    } else {
        w.participants = 1;
        run(&w, 0);
    }
    if (!call->forces || w.rows_found <= call->rows) total(&w);
    return w.rows_found;
}
