// The arguments of the kernels. The structures have the same fields as those of library.py; the first field is the kind.
#pragma once
#include <stdint.h>

enum Kind { FILTERS, ATOMS, FEATURES, BOUND, SYSTEM };
enum Start { ANALYSIS, ZERO, SCALED, THRESHOLDED };

// FILTERS: ISTA with filters, alone or with atoms, forward or backward. BOUND: quantities of the same dictionary that
// are computed before the first step. SYSTEM: a linear system with its Gram matrix.
struct Filters {
  int64_t kind, precise;           // precise: 0 for float, 1 for double
  int64_t batch, heads, channels;  // signals (batch, H W, heads channels)
  int64_t height, width;
  int64_t filters, filter_height, filter_width;  // (heads channels, filters, h, w)
  int64_t atoms;                                 // (batch, heads, H W, atoms); 0 without atoms
  int64_t steps, start;                          // start: a value of Start
  int64_t bounds;                                // (bounds, heads channels); 1 or the batch size
  int64_t chunks;                                // parts of the batch; grad_bank is (chunks, ...)
  int64_t iterations;                            // SYSTEM: largest number of conjugate gradient iterations
  double strength;
  const void *signal, *bank, *dictionary, *bound;
  void *reconstruction;
  const void *upstream;  // the gradient of the reconstruction; null in the forward pass
  void *grad_signal, *grad_bank, *grad_dictionary;
  // BOUND: one of these is computed, the other is null.
  void *power;       // of the filters, (heads channels, H, W / 2 + 1)
  void *eigenvalue;  // an upper bound on the eigenvalues of the union, (batch, heads channels)
  // SYSTEM: P^T P w = target on the support, w = 0 elsewhere; all are (batch, filters H W + atoms, heads channels)
  const void *target;
  const uint8_t *support;  // 0 or 1
  void *solution;
};

// ISTA with atoms only, forward or backward. The code is read out by the dictionary itself or by a reader.
struct Atoms {
  int64_t kind, precise;
  int64_t batch, heads, channels, positions;
  int64_t atoms;       // (batch, heads, positions, atoms)
  int64_t reads;       // positions of the reader, (batch, heads, reads, atoms); 0 without a reader
  int64_t steps, start;
  int64_t step_sizes;  // (batch, heads, step_sizes): 1, or the number of atoms; 0 if they are to be computed
  int64_t chunks;      // parts of the batch
  int64_t width;       // keys (batch, positions, heads width), queries (batch, reads, heads width); 0 without keys
  int64_t totals;      // computed step sizes: 1 for one over the sum of each atom, 0 for one over an eigenvalue bound
  double strength;
  const void *signal, *dictionary, *reader, *step_size;
  void *reconstruction;  // (batch, positions or reads, heads channels)
  void *found;           // output: the step sizes, if they are computed
  const void *upstream;  // null in the forward pass
  void *grad_signal, *grad_dictionary, *grad_reader, *grad_step_size;  // the last may be null
  // In place of `dictionary`, keys k and prototypes W of softmax(k W); in place of `reader`, queries and their own W.
  const void *keys, *prototypes, *queries, *reader_prototypes;                // W is (heads, width, atoms)
  void *grad_keys, *grad_prototypes, *grad_queries, *grad_reader_prototypes;  // of W, (chunks, heads, width, atoms)
};

// Atoms computed from queries, forward or backward.
struct Features {
  int64_t kind, precise;
  int64_t batch, heads, channels, positions;  // queries (batch, positions, heads channels)
  int64_t atoms;                              // directions (heads, channels, atoms)
  int64_t shares;  // 0 for exp(s q W - s^2 |q|^2 / 2) with columns of unit length, 1 for softmax(q W) of each row
  int64_t chunks;  // parts of the batch; grad_directions is (chunks, heads, channels, atoms)
  double scale;    // s
  const void *queries, *directions;
  void *features;        // (batch, heads, positions, atoms); an input of the backward pass
  const void *upstream;  // null in the forward pass
  void *grad_queries, *grad_directions;  // the last may be null
};
