// What is asked of the kernels. Fields are those of the structures in library.py; the first says which it is.
#pragma once
#include <stdint.h>

enum Kind { FILTERS, ATOMS, FEATURES, BOUND, SYSTEM };
enum Start { ANALYSIS, ZERO, SCALED, THRESHOLDED };

// A run of ISTA with filters, alone or beside atoms, forward or backward (FILTERS); what is known of these before the
// run (BOUND); or a system of equations with their Gram matrix (SYSTEM).
struct Filters {
  int64_t kind, precise;           // numbers are float: 0, or double: 1
  int64_t batch, heads, channels;  // signals (batch, H W, heads channels)
  int64_t height, width;
  int64_t filters, filter_height, filter_width;  // (heads channels, filters, h, w)
  int64_t atoms;                                 // (batch, heads, H W, atoms); none: 0
  int64_t steps, start;                          // start: one of Start
  int64_t bounds;                                // (bounds, heads channels): 1, or the batch
  int64_t chunks;                                // into how many parts the batch is cut: (chunks, ...) of_bank
  int64_t iterations;                            // SYSTEM: of conjugate gradients, at most
  double strength;
  const void *signal, *bank, *dictionary, *bound;
  void *reconstruction;
  const void *upstream;  // the gradient of the reconstruction; none in the forward pass
  void *of_signal, *of_bank, *of_dictionary;
  // BOUND: one of these is wanted.
  void *power;       // of the filters: (heads channels, H, W / 2 + 1)
  void *eigenvalue;  // an upper bound on those of the union: (batch, heads channels)
  // SYSTEM: P^T P w = target on the support, w = 0 elsewhere; (batch, filters H W + atoms, heads channels) each
  const void *target;
  const uint8_t *support;  // 0 or 1
  void *solution;
};

// A run of ISTA with atoms alone, read out by themselves or by a reader, forward or backward.
struct Atoms {
  int64_t kind, precise;
  int64_t batch, heads, channels, positions;
  int64_t atoms;       // (batch, heads, positions, atoms)
  int64_t reads;       // (batch, heads, reads, atoms), positions of the reader; none: 0
  int64_t steps, start;
  int64_t step_sizes;  // (batch, heads, step_sizes): 1, or one for each atom; none are given: 0
  int64_t chunks;      // into how many parts the batch is cut
  int64_t width;       // keys (batch, positions, heads width), queries (batch, reads, heads width); none: 0
  int64_t totals;      // step sizes are 1: one over the sum of each atom, 0: one over a bound on the eigenvalues
  double strength;
  const void *signal, *dictionary, *reader, *step_size;
  void *reconstruction;  // (batch, positions or reads, heads channels)
  void *found;           // the step sizes, where none are given
  const void *upstream;  // none in the forward pass
  void *of_signal, *of_dictionary, *of_reader, *of_step_size;  // the last only where it is wanted
  // Instead of a dictionary and a reader: softmax(k W) of keys, and of queries, if there are any, with a W of their own.
  const void *keys, *prototypes, *queries, *reader_prototypes;         // W (heads, width, atoms)
  void *of_keys, *of_prototypes, *of_queries, *of_reader_prototypes;  // of W (chunks, heads, width, atoms)
};

// Atoms made of queries, forward or backward.
struct Features {
  int64_t kind, precise;
  int64_t batch, heads, channels, positions;  // queries (batch, positions, heads channels)
  int64_t atoms;                              // directions (heads, channels, atoms)
  int64_t shares;  // 0: exp(s q W - s^2 |q|^2 / 2) with columns of unit length, 1: softmax(q W) of each row
  int64_t chunks;  // into how many parts the batch is cut: (chunks, heads, channels, atoms) of_directions
  double scale;    // s
  const void *queries, *directions;
  void *features;        // (batch, heads, positions, atoms), in the backward pass given
  const void *upstream;  // none in the forward pass
  void *of_queries, *of_directions;  // the last only where it is wanted
};
