/* Which of the instruction sets that code is compiled for this machine has, and code for each of them.

   #define EACH "a path from this folder" before this file is included includes that file for every instruction set. SET
   is its number, and IN_SET(f) appends its name to f. */

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

#ifdef EACH
#define SET 0
#define IN_SET(f) f##_base
#include EACH
#undef SET
#undef IN_SET
#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("arch=x86-64-v3"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("arch=x86-64-v3")
#endif
#define SET 1
#define IN_SET(f) f##_v3
#include EACH
#undef SET
#undef IN_SET
#if defined(__clang__)
#pragma clang attribute pop
#pragma clang attribute push(__attribute__((target("arch=x86-64-v4"))), apply_to = function)
#else
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("arch=x86-64-v4")
#endif
#define SET 2
#define IN_SET(f) f##_v4
#include EACH
#undef SET
#undef IN_SET
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
#undef EACH
#endif
