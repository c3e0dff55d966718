/* Which of the instruction sets that code is compiled for this machine has. */

#ifndef INSTRUCTIONS_H
#define INSTRUCTIONS_H
#include <stdint.h>

/* The best instruction set of this machine, at most `most`: 0 the compiler's default, 1 x86-64-v3, 2 x86-64-v4. */
static int64_t best_instructions(int64_t most)
{
    int64_t best = 0;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2")) best = 1;
    if (best && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512cd"))
        best = 2;
#endif
    return best < most ? best : most;
}

#endif
