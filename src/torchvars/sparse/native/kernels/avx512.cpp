#if defined(__x86_64__)
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512dq,avx512vl,avx512bw,avx2,fma"))), apply_to = function)
#else
#pragma GCC target("avx512f,avx512dq,avx512vl,avx512bw,avx2,fma")
#endif
#define BYTES 64
#define ENTRY(name) avx512_##name
#include "kernels.h"
#if defined(__clang__)
#pragma clang attribute pop
#endif
#endif
