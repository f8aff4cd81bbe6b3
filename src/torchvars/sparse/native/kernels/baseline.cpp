// For any processor: SSE2 of x86, NEON of ARM, whatever vectors of 16 bytes there are.
#define BYTES 16
#define ENTRY(name) baseline_##name
#include "kernels.h"
