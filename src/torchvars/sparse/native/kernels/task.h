// What is asked of the kernels: one run of ISTA, forward or backward. The fields are those of `Task` in library.py.
#pragma once
#include <stdint.h>

enum Start { ANALYSIS, ZERO, SCALED, THRESHOLDED };

struct Task {
  int64_t batch, heads, channels;  // signals (batch, H W, heads channels)
  int64_t height, width;
  int64_t filters, filter_height, filter_width;  // (heads channels, filters, h, w)
  int64_t atoms;                                 // (batch, heads, H W, atoms); none: 0
  int64_t steps, start;                          // start: one of Start
  int64_t bounds;                                // (bounds, heads channels): 1, or the batch
  int64_t chunks;                                // into how many parts the batch is cut: (chunks, ...) of_bank
  int64_t precise;                                // numbers are float: 0, or double: 1
  double strength;
  const void *signal, *bank, *dictionary, *bound;
  void *reconstruction;
  const void *upstream;  // the gradient of the reconstruction; none in the forward pass
  void *of_signal, *of_bank, *of_dictionary;
  void *power;  // of the filters, the only thing wanted where it is given: (heads channels, H, W / 2 + 1)
};
