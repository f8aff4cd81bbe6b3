// ISTA with a dense dictionary P, and the gradient of what it reconstructs.
//
//     g_i = G u_{i-1} - b,   u_i = S(u_{i-1} - r g_i, strength r),   result R u_T        G = P^T P,   b = P^T x
//
// r is a number, 1 / L, or one for each atom, which may be 1 / P^T 1. Between P^T x and P u there are matrices of atoms x atoms and atoms x
// channels only: everything of one head of one image stays in the cache. docs/performance.md derives the gradient.
#pragma once
#include "bounds.h"
#include "task.h"

namespace {

template <class T> class AtomsIsta {
  typedef Vector<T> V;
  static constexpr int64_t lanes = Lanes<T>::count;

  static constexpr int64_t some = 128;  // positions at a time

  const Atoms &task;
  int64_t across, width, reads;  // vectors of the atoms and of the channels, positions that are read
  bool backward;
  V *gram, *drive, *step;  // (atoms, across), (atoms, width), (across): r of each atom
  V *rows, *map;           // of some positions: (some, across), (some, width)
  V *codes, *slopes;       // u_i and g_i, of every step in the backward pass
  V *turned, *of_gram, *of_drive, *of_code, *moved, *of_step, *arrived;

 public:
  AtomsIsta(const Atoms &given, Room &room) : task(given) {
    across = vectors_of<T>(task.atoms), width = vectors_of<T>(task.channels);
    reads = task.reads ? task.reads : task.positions;
    backward = task.upstream != nullptr;
    const int64_t square = task.atoms * across, code = task.atoms * width, kept = backward ? task.steps : 0;
    gram = room.take<V>(square), drive = room.take<V>(code), step = room.take<V>(3 * across);
    rows = room.take<V>(some * across), map = room.take<V>(some * width);
    codes = room.take<V>((kept + 1) * code), slopes = room.take<V>((kept > 1 ? kept : 1) * code);
    if (backward) {
      turned = room.take<V>(2 * task.channels * across), of_gram = room.take<V>(square);
      of_drive = room.take<V>(code), of_code = room.take<V>(code), moved = room.take<V>(code);
      of_step = room.take<V>(across), arrived = room.take<V>(some * width);
    }
  }

  static int64_t items(const Atoms &task) { return task.batch * task.heads; }

  void run(int64_t item) {
    const T *atoms = (const T *)task.dictionary + item * task.positions * task.atoms;
    const T *reader = task.reader ? (const T *)task.reader + item * reads * task.atoms : atoms;
    memset(gram, 0, sizeof(V) * task.atoms * across);
    memset(drive, 0, sizeof(V) * task.atoms * width);
    memset(step, 0, sizeof(V) * across);
    each_part(task.positions, [&](int64_t first, int64_t count) {
      const T *part = atoms + first * task.atoms;
      for (int64_t n = 0; n < count; n++) load_row(part + n * task.atoms, task.atoms, rows + n * across);
      if (task.totals && !task.step_sizes)
        for (int64_t n = 0; n < count; n++)
          for (int64_t i = 0; i < across; i++) step[i] += rows[n * across + i];
      load_map(task.signal, task.positions, item, first, count, map);
      multiply_transposed<T, true>(part, task.atoms, count, rows, gram, across);
      multiply_transposed<T, true>(part, task.atoms, count, map, drive, width);
    });
    set_step(item);
    solve();
    if (backward) return differentiate(item, atoms, reader);
    each_part(reads, [&](int64_t first, int64_t count) {
      multiply<T>(reader + first * task.atoms, count, task.atoms, codes, map, width);
      store_map(map, reads, item, first, count, task.reconstruction);
    });
  }

 private:
  T step_of(int64_t atom) const { return ((const T *)step)[atom]; }

  template <class Part> void each_part(int64_t positions, Part part) const {
    for (int64_t first = 0; first < positions; first += some)
      part(first, positions - first < some ? positions - first : some);
  }

  // Signals (batch, positions, heads channels)
  int64_t place(int64_t positions, int64_t item, int64_t first) const {
    return ((item / task.heads * positions + first) * task.heads + item % task.heads) * task.channels;
  }

  void load_map(const void *from, int64_t positions, int64_t item, int64_t first, int64_t count, V *to) const {
    const T *at = (const T *)from + place(positions, item, first);
    for (int64_t n = 0; n < count; n++) load_row(at + n * task.heads * task.channels, task.channels, to + n * width);
  }

  void store_map(const V *from, int64_t positions, int64_t item, int64_t first, int64_t count, void *to) const {
    T *at = (T *)to + place(positions, item, first);
    for (int64_t n = 0; n < count; n++) store_row(at + n * task.heads * task.channels, from + n * width, task.channels);
  }

  void set_step(int64_t item) {
    const T *given = (const T *)task.step_size + item * task.step_sizes;
    T *found = (T *)task.found;
    if (task.totals && !task.step_sizes) {
      for (int64_t i = 0; i < across; i++) step[i] = T(1) / larger<T>(all(least_total()), step[i]);
      return store_row(found + item * task.atoms, step, task.atoms);
    }
    if (task.step_sizes > 1) return load_row(given, task.atoms, step);
    T size;
    if (task.step_sizes)
      size = *given;
    else
      found[item] = size = 1 / perron_eigenvalue<T>(gram, task.atoms, step + across, step + 2 * across);
    for (int64_t i = 0; i < across; i++) step[i] = all(size);
  }

  static T least_total() { return root(Precision<T>::tiny); }  // of an atom of zeros, so that its inverse stays a number

  V *code(int64_t i) const { return codes + (backward ? i * task.atoms * width : 0); }
  V *slope(int64_t i) const { return slopes + (backward ? i * task.atoms * width : 0); }

  void solve() {
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

  void differentiate(int64_t item, const T *atoms, const T *reader) {
    const int64_t size = task.atoms * width;
    V *of_result = turned, *of_moved = turned + task.channels * across;  // u_T, and the others, with atoms along rows
    memset(of_gram, 0, sizeof(V) * task.atoms * across);
    memset(of_drive, 0, sizeof(V) * size);
    memset(of_step, 0, sizeof(V) * across);
    memset(of_code, 0, sizeof(V) * size);
    transpose<T>(code(task.steps), task.atoms, task.channels, width, of_result);
    each_part(reads, [&](int64_t first, int64_t count) {
      load_map(task.upstream, reads, item, first, count, arrived);
      multiply_transposed<T, true>(reader + first * task.atoms, task.atoms, count, arrived, of_code, width);
      if (!task.reader) return;
      multiply<T>((const T *)arrived, count, task.channels, of_result, rows, across, width * lanes);
      leave(count, (T *)task.of_reader + (item * reads + first) * task.atoms);
    });
    for (int64_t i = task.steps; i >= 1; i--) {
      unshrink(code(i), slope(i - 1));
      transpose<T>(code(i - 1), task.atoms, task.channels, width, of_moved);
      multiply<T, true>((const T *)moved, task.atoms, task.channels, of_moved, of_gram, across, width * lanes);
      multiply<T, true>((const T *)gram, task.atoms, task.atoms, moved, of_code, width, across * lanes);
    }
    for (int64_t m = 0; m < task.atoms; m++)
      for (int64_t at = m * width; at < (m + 1) * width; at++) {
        const V h = of_code[at];
        switch (task.start) {
          case ANALYSIS: of_drive[at] += h; break;
          case ZERO: break;
          case SCALED: of_drive[at] += h * step_of(m); break;
          default: of_drive[at] += code(0)[at] != V{} ? h : V{};
        }
      }
    if (task.totals)  // of the sums; that of an atom of zeros does not change its step
      for (int64_t i = 0; i < across; i++)
        of_step[i] = step[i] < T(1) / least_total() ? -of_step[i] * step[i] * step[i] : V{};
    if (task.of_step_size) store_row((T *)task.of_step_size + item * task.atoms, of_step, task.atoms);
    transpose<T>(of_gram, task.atoms, task.atoms, across, gram);
    for (int64_t i = 0; i < task.atoms * across; i++) of_gram[i] += gram[i];
    transpose<T>(of_drive, task.atoms, task.channels, width, of_moved);
    each_part(task.positions, [&](int64_t first, int64_t count) {  // P (G + G^T) + x b^T, and the result's P
      const T *part = atoms + first * task.atoms;
      multiply<T>(part, count, task.atoms, of_gram, rows, across);
      load_map(task.signal, task.positions, item, first, count, map);
      multiply<T, true>((const T *)map, count, task.channels, of_moved, rows, across, width * lanes);
      if (!task.reader) {
        load_map(task.upstream, reads, item, first, count, arrived);
        multiply<T, true>((const T *)arrived, count, task.channels, of_result, rows, across, width * lanes);
      }
      if (task.totals)
        for (int64_t n = 0; n < count; n++)
          for (int64_t i = 0; i < across; i++) rows[n * across + i] += of_step[i];
      leave(count, (T *)task.of_dictionary + (item * task.positions + first) * task.atoms);
      multiply<T>(part, count, task.atoms, of_drive, map, width);
      store_map(map, task.positions, item, first, count, task.of_signal);
    });
  }

  // Back through a step: `of_code` becomes the gradient of what was shrunk, `moved` that of G u.
  void unshrink(const V *after, const V *slope) {
    const T strength = (T)task.strength;
    for (int64_t m = 0; m < task.atoms; m++) {
      const T r = step_of(m);
      V sum = {};
      for (int64_t at = m * width; at < (m + 1) * width; at++) {
        const V u = after[at], sign = u > V{} ? all(T(1)) : all(T(-1));
        const V h = u != V{} ? of_code[at] : V{};  // the threshold lets it pass where the code is not zero
        sum -= h * (slope[at] + sign * strength);
        of_code[at] = h, moved[at] = h * -r;
        of_drive[at] -= moved[at];
      }
      ((T *)of_step)[m] += total<T>(sum);
    }
  }

  void leave(int64_t count, T *to) const {
    for (int64_t n = 0; n < count; n++) store_row(to + n * task.atoms, rows + n * across, task.atoms);
  }
};

}  // namespace
