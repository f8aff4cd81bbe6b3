#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC target("avx2,fma")
#endif
#define BYTES 32
#define ENTRY(name) avx2_##name
#include "kernels.h"
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
