// ISTA with a dense dictionary P, and the gradient of the reconstruction.
//
//     g_i = G u_{i-1} - b,   u_i = S(u_{i-1} - r g_i, strength r),   result R u_T        G = P^T P,   b = P^T x
//
// The step size r is a number, 1 / L, or one number for each atom, such as 1 / P^T 1. Between P^T x and P u all matrices
// are atoms x atoms or atoms x channels, so that the data of one head of one image stays in the cache.
// docs/performance.md derives the gradient.
#pragma once
#include "bounds.h"
#include "feature_map.h"

namespace {

template <class T> class AtomsIsta {
  typedef Vector<T> V;
  static constexpr int64_t lanes = Lanes<T>::count;

  static constexpr int64_t part_size = 128;  // positions at a time

  struct Dictionary {  // a matrix, or queries and prototypes of softmax(q W)
    const T *given, *queries;
    T *grad_given, *grad_queries;
    V *prototypes, *transposed = nullptr, *grad_prototypes = nullptr;  // W (width, across), its transpose, its gradient
  };

  const Atoms &task;
  int64_t across, width, wide, reads;  // number of vectors that hold atoms, channels, keys; positions of the result
  bool backward;
  Dictionary atoms, reader;
  V *gram, *drive, *step;  // (atoms, across), (atoms, width), (across): r of each atom
  V *rows, *map;           // a part of the positions: (part_size, across), (part_size, width)
  V *codes, *slopes;       // u_i and g_i; in the backward pass those of every step
  V *codes_by_channel, *grad_gram, *grad_drive, *grad_code, *grad_product, *grad_step, *upstream, *grad_rows;
  V *grad_keys;

 public:
  AtomsIsta(const Atoms &given, Workspace &workspace) : task(given) {
    across = vectors_of<T>(task.atoms), width = vectors_of<T>(task.channels);
    wide = vectors_of<T>(task.width), reads = task.reads ? task.reads : task.positions;
    backward = task.upstream != nullptr;
    const int64_t square = task.atoms * across, code = task.atoms * width, kept = backward ? task.steps : 0;
    gram = workspace.take<V>(square), drive = workspace.take<V>(code), step = workspace.take<V>(3 * across);
    rows = workspace.take<V>(part_size * across), map = workspace.take<V>(part_size * width);
    codes = workspace.take<V>((kept + 1) * code), slopes = workspace.take<V>((kept > 1 ? kept : 1) * code);
    if (backward) {
      codes_by_channel = workspace.take<V>(2 * task.channels * across), grad_gram = workspace.take<V>(square);
      grad_drive = workspace.take<V>(code), grad_code = workspace.take<V>(code), grad_product = workspace.take<V>(code);
      grad_step = workspace.take<V>(across), upstream = workspace.take<V>(part_size * width);
      grad_rows = workspace.take<V>(part_size * across), grad_keys = workspace.take<V>(part_size * wide);
    }
    allocate(atoms, workspace);
    allocate(reader, workspace);
  }

  static int64_t items(const Atoms &task) { return task.heads * task.chunks; }

  void run(int64_t item) {
    const int64_t head = item / task.chunks, chunk = item % task.chunks;
    load_prototypes(atoms, task.prototypes, head);
    if (task.queries) load_prototypes(reader, task.reader_prototypes, head);
    for (int64_t image = task.batch * chunk / task.chunks; image < task.batch * (chunk + 1) / task.chunks; image++) {
      const int64_t pair = image * task.heads + head;
      select(atoms, pair, task.positions, task.dictionary, task.keys, task.grad_dictionary, task.grad_keys);
      select(reader, pair, reads, task.reader, task.queries, task.grad_reader, task.grad_queries);
      solve(pair);
      if (backward)
        differentiate(pair);
      else
        each_part(reads, [&](int64_t first, int64_t count) {
          const Numbers<T> r = part(has_reader() ? reader : atoms, first, count);
          multiply_all<T, false>(r, count, task.atoms, codes, map, width);
          store_map(map, reads, pair, first, count, task.reconstruction);
        });
    }
    if (!backward) return;
    store_prototype_gradient(atoms, task.grad_prototypes, chunk, head);
    store_prototype_gradient(reader, task.grad_reader_prototypes, chunk, head);
  }

 private:
  bool has_reader() const { return task.reader || task.queries; }
  T step_of(int64_t atom) const { return ((const T *)step)[atom]; }

  template <class Part> void each_part(int64_t positions, Part part) const {
    for (int64_t first = 0; first < positions; first += part_size)
      part(first, positions - first < part_size ? positions - first : part_size);
  }

  // Dictionaries

  void allocate(Dictionary &dictionary, Workspace &workspace) const {
    dictionary.prototypes = workspace.take<V>(task.width * across);
    if (!backward) return;
    dictionary.transposed = workspace.take<V>(task.atoms * wide);
    dictionary.grad_prototypes = workspace.take<V>(task.width * across);
  }

  void load_prototypes(Dictionary &dictionary, const void *prototypes, int64_t head) const {
    if (!prototypes) return;
    const T *from = (const T *)prototypes + head * task.width * task.atoms;
    for (int64_t c = 0; c < task.width; c++)
      load_row(from + c * task.atoms, task.atoms, dictionary.prototypes + c * across);
    if (!backward) return;
    transpose<T>(dictionary.prototypes, task.width, task.atoms, across, dictionary.transposed);
    memset(dictionary.grad_prototypes, 0, sizeof(V) * task.width * across);
  }

  void store_prototype_gradient(const Dictionary &dictionary, void *to, int64_t chunk, int64_t head) const {
    if (!to) return;
    for (int64_t c = 0; c < task.width; c++)
      store_row((T *)to + ((chunk * task.heads + head) * task.width + c) * task.atoms,
                dictionary.grad_prototypes + c * across, task.atoms);
  }

  int64_t stride() const { return task.heads * task.width; }  // of the keys, from one position to the next

  void select(Dictionary &dictionary, int64_t pair, int64_t count, const void *given, const void *queries,
             void *grad_given, void *grad_queries) const {
    const int64_t rows = pair * count * task.atoms;
    const int64_t keys = (pair / task.heads * count * task.heads + pair % task.heads) * task.width;
    dictionary.given = given ? (const T *)given + rows : nullptr;
    dictionary.queries = queries ? (const T *)queries + keys : nullptr;
    dictionary.grad_given = grad_given ? (T *)grad_given + rows : nullptr;
    dictionary.grad_queries = grad_queries ? (T *)grad_queries + keys : nullptr;
  }

  // Rows of a dictionary. Those of a softmax are computed, into `rows`.
  Numbers<T> part(const Dictionary &dictionary, int64_t first, int64_t count) const {
    if (dictionary.given) return {dictionary.given + first * task.atoms, task.atoms, 1};
    multiply_all<T, false>({dictionary.queries + first * stride(), stride(), 1}, count, task.width,
                           dictionary.prototypes, rows, across);
    softmax<T>(rows, count, task.atoms);
    return {(const T *)rows, across * lanes, 1};
  }

  static Numbers<T> transposed(Numbers<T> p) { return {p.data, p.column, p.row}; }

  // Stores `grad_rows`, the gradient of the rows that `part` returned last.
  void store_gradient(const Dictionary &dictionary, int64_t first, int64_t count) const {
    if (dictionary.given) {
      T *to = dictionary.grad_given + first * task.atoms;
      for (int64_t n = 0; n < count; n++) store_row(to + n * task.atoms, grad_rows + n * across, task.atoms);
      return;
    }
    for (int64_t n = 0; n < count; n++) softmax_backward<T>(rows + n * across, grad_rows + n * across, across);
    multiply_all<T, false>({(const T *)rows, across * lanes, 1}, count, task.atoms, dictionary.transposed, grad_keys,
                           wide);
    for (int64_t n = 0; n < count; n++)
      store_row(dictionary.grad_queries + (first + n) * stride(), grad_keys + n * wide, task.width);
    multiply_all<T, true>({dictionary.queries + first * stride(), 1, stride()}, task.width, count, rows,
                          dictionary.grad_prototypes, across);
  }

  // Signals (batch, positions, heads channels)
  int64_t signal(int64_t positions, int64_t pair, int64_t first) const {
    return ((pair / task.heads * positions + first) * task.heads + pair % task.heads) * task.channels;
  }

  void load_map(const void *from, int64_t positions, int64_t pair, int64_t first, int64_t count, V *to) const {
    const T *at = (const T *)from + signal(positions, pair, first);
    for (int64_t n = 0; n < count; n++) load_row(at + n * task.heads * task.channels, task.channels, to + n * width);
  }

  void store_map(const V *from, int64_t positions, int64_t pair, int64_t first, int64_t count, void *to) const {
    T *at = (T *)to + signal(positions, pair, first);
    for (int64_t n = 0; n < count; n++) store_row(at + n * task.heads * task.channels, from + n * width, task.channels);
  }

  void set_step(int64_t pair) {
    const T *given = (const T *)task.step_size + pair * task.step_sizes;
    T *found = (T *)task.found;
    if (task.totals && !task.step_sizes) {
      for (int64_t i = 0; i < across; i++) step[i] = T(1) / larger<T>(all(least_total()), step[i]);
      return store_row(found + pair * task.atoms, step, task.atoms);
    }
    if (task.step_sizes > 1) return load_row(given, task.atoms, step);
    T size;
    if (task.step_sizes)
      size = *given;
    else
      found[pair] = size = 1 / perron_eigenvalue<T>(gram, task.atoms, step + across, step + 2 * across);
    for (int64_t i = 0; i < across; i++) step[i] = all(size);
  }

  // A lower bound on the sum of an atom, so that the inverse is finite also for an atom of zeros.
  static T least_total() { return root(Precision<T>::tiny); }

  V *code(int64_t i) const { return codes + (backward ? i * task.atoms * width : 0); }
  V *slope(int64_t i) const { return slopes + (backward ? i * task.atoms * width : 0); }

  void solve(int64_t pair) {
    memset(gram, 0, sizeof(V) * task.atoms * across);
    memset(drive, 0, sizeof(V) * task.atoms * width);
    memset(step, 0, sizeof(V) * across);
    each_part(task.positions, [&](int64_t first, int64_t count) {
      const Numbers<T> p = part(atoms, first, count);
      if (atoms.given)
        for (int64_t n = 0; n < count; n++) load_row(p.data + n * task.atoms, task.atoms, rows + n * across);
      if (task.totals && !task.step_sizes)
        for (int64_t n = 0; n < count; n++)
          for (int64_t i = 0; i < across; i++) step[i] += rows[n * across + i];
      load_map(task.signal, task.positions, pair, first, count, map);
      multiply_all<T, true>(transposed(p), task.atoms, count, rows, gram, across);
      multiply_all<T, true>(transposed(p), task.atoms, count, map, drive, width);
    });
    set_step(pair);
    V *u = code(0);
    for (int64_t m = 0; m < task.atoms; m++)
      for (int64_t c = 0; c < width; c++) {
        const V b = drive[m * width + c];
        V &to = u[m * width + c];
        switch (task.start) {
          case ANALYSIS: to = b; break;
          case ZERO: to = V{}; break;
          case SCALED: to = b * step_of(m); break;
          default: to = soft<T>(b, all((T)task.strength));
        }
      }
    for (int64_t i = 1; i <= task.steps; i++) {
      V *after = code(i), *g = slope(i - 1);
      const V *before = code(i - 1);
      multiply<T>((const T *)gram, task.atoms, task.atoms, before, g, width, across * lanes);
      for (int64_t m = 0; m < task.atoms; m++) {
        const T r = step_of(m);
        const V amount = all((T)task.strength * r);
        for (int64_t at = m * width; at < (m + 1) * width; at++) {
          g[at] -= drive[at];
          after[at] = soft<T>(before[at] - g[at] * r, amount);
        }
      }
    }
  }

  void differentiate(int64_t pair) {
    const int64_t size = task.atoms * width;
    // u_T, and other matrices (atoms, channels), transposed
    V *result_by_channel = codes_by_channel, *other_by_channel = codes_by_channel + task.channels * across;
    memset(grad_gram, 0, sizeof(V) * task.atoms * across);
    memset(grad_drive, 0, sizeof(V) * size);
    memset(grad_step, 0, sizeof(V) * across);
    memset(grad_code, 0, sizeof(V) * size);
    transpose<T>(code(task.steps), task.atoms, task.channels, width, result_by_channel);
    each_part(reads, [&](int64_t first, int64_t count) {
      const Numbers<T> r = part(has_reader() ? reader : atoms, first, count);
      load_map(task.upstream, reads, pair, first, count, upstream);
      multiply_all<T, true>(transposed(r), task.atoms, count, upstream, grad_code, width);
      if (!has_reader()) return;
      multiply<T>((const T *)upstream, count, task.channels, result_by_channel, grad_rows, across, width * lanes);
      store_gradient(reader, first, count);
    });
    for (int64_t i = task.steps; i >= 1; i--) {
      shrink_backward(code(i), slope(i - 1));
      transpose<T>(code(i - 1), task.atoms, task.channels, width, other_by_channel);
      multiply<T, true>((const T *)grad_product, task.atoms, task.channels, other_by_channel, grad_gram, across,
                        width * lanes);
      multiply<T, true>((const T *)gram, task.atoms, task.atoms, grad_product, grad_code, width, across * lanes);
    }
    for (int64_t m = 0; m < task.atoms; m++)
      for (int64_t at = m * width; at < (m + 1) * width; at++) {
        const V h = grad_code[at];
        switch (task.start) {
          case ANALYSIS: grad_drive[at] += h; break;
          case ZERO: break;
          case SCALED: grad_drive[at] += h * step_of(m); break;
          default: grad_drive[at] += code(0)[at] != V{} ? h : V{};
        }
      }
    if (task.totals)  // the gradient of the sums; 0 for an atom of zeros, whose step size is constant
      for (int64_t i = 0; i < across; i++)
        grad_step[i] = step[i] < T(1) / least_total() ? -grad_step[i] * step[i] * step[i] : V{};
    if (task.grad_step_size) store_row((T *)task.grad_step_size + pair * task.atoms, grad_step, task.atoms);
    transpose<T>(grad_gram, task.atoms, task.atoms, across, gram);
    for (int64_t i = 0; i < task.atoms * across; i++) grad_gram[i] += gram[i];
    transpose<T>(grad_drive, task.atoms, task.channels, width, other_by_channel);
    each_part(task.positions, [&](int64_t first, int64_t count) {  // of P (G + G^T) + x b^T, and of R = P
      const Numbers<T> p = part(atoms, first, count);
      multiply_all<T, false>(p, count, task.atoms, grad_gram, grad_rows, across);
      load_map(task.signal, task.positions, pair, first, count, map);
      multiply<T, true>((const T *)map, count, task.channels, other_by_channel, grad_rows, across, width * lanes);
      if (!has_reader()) {
        load_map(task.upstream, reads, pair, first, count, upstream);
        multiply<T, true>((const T *)upstream, count, task.channels, result_by_channel, grad_rows, across,
                          width * lanes);
      }
      if (task.totals)
        for (int64_t n = 0; n < count; n++)
          for (int64_t i = 0; i < across; i++) grad_rows[n * across + i] += grad_step[i];
      multiply_all<T, false>(p, count, task.atoms, grad_drive, map, width);
      store_map(map, task.positions, pair, first, count, task.grad_signal);
      store_gradient(atoms, first, count);
    });
  }

  // Backward of a step: `grad_code` becomes the gradient of the argument of S, and `grad_product` that of G u.
  void shrink_backward(const V *after, const V *slope) {
    const T strength = (T)task.strength;
    for (int64_t m = 0; m < task.atoms; m++) {
      const T r = step_of(m);
      V sum = {};
      for (int64_t at = m * width; at < (m + 1) * width; at++) {
        const V u = after[at], sign = u > V{} ? all(T(1)) : all(T(-1));
        const V h = u != V{} ? grad_code[at] : V{};  // passes the threshold where the code is not zero
        sum -= h * (slope[at] + sign * strength);
        grad_code[at] = h, grad_product[at] = h * -r;
        grad_drive[at] -= grad_product[at];
      }
      ((T *)grad_step)[m] += total<T>(sum);
    }
  }
};

}  // namespace
