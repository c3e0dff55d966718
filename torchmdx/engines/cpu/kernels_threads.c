/* How kernels are called: kernel(first, last, given) for rows [first, last), with their other arguments, numbers and
   addresses, in given. ROWS(name, ...) makes a kernel of the function all_name. The first number is that of the
   channels; room has place for twice as many. */

#define INLINE static inline __attribute__((always_inline))

#define NUMBER(k) given[k]
#define INTS(k) ((const int *)given[k])
#define REALS(k) ((REAL *)given[k])
#define ROWS(name, ...)                                           \
    void NAME(name)(long first, long last, const long *given)     \
    {                                                             \
        REAL room[2 * given[0]];                                  \
        (void)room;                                               \
        NAME(all_##name)(first, last, __VA_ARGS__);               \
    }

typedef void (*rows_kernel)(long first, long last, const long *given);

struct rows_work {
    rows_kernel kernel;
    long count;
    const long *bounds, *given;
    int (*number)(void), (*team)(void);
};

static void rows_share(void *data)
{
    const struct rows_work *work = data;
    for (long k = work->number(); k < work->count; k += work->team())
        work->kernel(work->bounds[k], work->bounds[k + 1], work->given);
}

/* The kernel over `count` ranges of rows, range k from bounds[k] to bounds[k + 1], by the threads of an OpenMP that is
   loaded already: GOMP_parallel, omp_get_thread_num and omp_get_num_threads. All of its threads come, as they do for
   torch: another number would make it end some, and start them anew for torch's next operation. */
void rows_parallel(void (*parallel)(void (*)(void *), void *, unsigned, unsigned), int (*number)(void),
                   int (*team)(void), rows_kernel kernel, long count, const long *bounds, const long *given)
{
    struct rows_work work = {kernel, count, bounds, given, number, team};
    parallel(rows_share, &work, 0, 0);
}
