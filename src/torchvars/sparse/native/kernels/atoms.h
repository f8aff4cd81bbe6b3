// ISTA with a dense dictionary P, and the gradient of what it reconstructs.
//
//     g_i = G u_{i-1} - b,   u_i = S(u_{i-1} - r g_i, strength r),   result R u_T        G = P^T P,   b = P^T x
//
// r is a number, 1 / L, or one for each atom, which may be 1 / P^T 1. Between P^T x and P u there are matrices of atoms x
// atoms and atoms x channels only: everything of one head of one image stays in the cache. docs/performance.md derives
// the gradient.
#pragma once
#include "bounds.h"
#include "feature_map.h"

namespace {

template <class T> class AtomsIsta {
  typedef Vector<T> V;
  static constexpr int64_t lanes = Lanes<T>::count;

  static constexpr int64_t some = 128;  // positions at a time

  struct Dictionary {  // as it is given, or as what it is made of
    const T *given, *queries;
    T *of_given, *of_queries;
    V *prototypes, *turned = nullptr, *gathered = nullptr;  // (width, across), its transpose, its gradient
  };

  const Atoms &task;
  int64_t across, width, wide, reads;  // vectors of atoms, channels and a head's keys; positions that are read
  bool backward;
  Dictionary atoms, reader;
  V *gram, *drive, *step;  // (atoms, across), (atoms, width), (across): r of each atom
  V *rows, *map;           // of some positions: (some, across), (some, width)
  V *codes, *slopes;       // u_i and g_i, of every step in the backward pass
  V *turned, *of_gram, *of_drive, *of_code, *moved, *of_step, *arrived, *of_rows, *of_keys;

 public:
  AtomsIsta(const Atoms &given, Room &room) : task(given) {
    across = vectors_of<T>(task.atoms), width = vectors_of<T>(task.channels);
    wide = vectors_of<T>(task.width), reads = task.reads ? task.reads : task.positions;
    backward = task.upstream != nullptr;
    const int64_t square = task.atoms * across, code = task.atoms * width, kept = backward ? task.steps : 0;
    gram = room.take<V>(square), drive = room.take<V>(code), step = room.take<V>(3 * across);
    rows = room.take<V>(some * across), map = room.take<V>(some * width);
    codes = room.take<V>((kept + 1) * code), slopes = room.take<V>((kept > 1 ? kept : 1) * code);
    if (backward) {
      turned = room.take<V>(2 * task.channels * across), of_gram = room.take<V>(square);
      of_drive = room.take<V>(code), of_code = room.take<V>(code), moved = room.take<V>(code);
      of_step = room.take<V>(across), arrived = room.take<V>(some * width);
      of_rows = room.take<V>(some * across), of_keys = room.take<V>(some * wide);
    }
    lay_out(atoms, room);
    lay_out(reader, room);
  }

  static int64_t items(const Atoms &task) { return task.heads * task.chunks; }

  void run(int64_t item) {
    const int64_t head = item / task.chunks, chunk = item % task.chunks;
    enter(atoms, task.prototypes, head);
    if (task.queries) enter(reader, task.reader_prototypes, head);
    for (int64_t image = task.batch * chunk / task.chunks; image < task.batch * (chunk + 1) / task.chunks; image++) {
      const int64_t pair = image * task.heads + head;
      place(atoms, pair, task.positions, task.dictionary, task.keys, task.of_dictionary, task.of_keys);
      place(reader, pair, reads, task.reader, task.queries, task.of_reader, task.of_queries);
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
    leave_prototypes(atoms, task.of_prototypes, chunk, head);
    leave_prototypes(reader, task.of_reader_prototypes, chunk, head);
  }

 private:
  bool has_reader() const { return task.reader || task.queries; }
  T step_of(int64_t atom) const { return ((const T *)step)[atom]; }

  template <class Part> void each_part(int64_t positions, Part part) const {
    for (int64_t first = 0; first < positions; first += some)
      part(first, positions - first < some ? positions - first : some);
  }

  // Dictionaries

  void lay_out(Dictionary &dictionary, Room &room) const {
    dictionary.prototypes = room.take<V>(task.width * across);
    if (!backward) return;
    dictionary.turned = room.take<V>(task.atoms * wide), dictionary.gathered = room.take<V>(task.width * across);
  }

  void enter(Dictionary &dictionary, const void *prototypes, int64_t head) const {
    if (!prototypes) return;
    const T *from = (const T *)prototypes + head * task.width * task.atoms;
    for (int64_t c = 0; c < task.width; c++)
      load_row(from + c * task.atoms, task.atoms, dictionary.prototypes + c * across);
    if (!backward) return;
    transpose<T>(dictionary.prototypes, task.width, task.atoms, across, dictionary.turned);
    memset(dictionary.gathered, 0, sizeof(V) * task.width * across);
  }

  void leave_prototypes(const Dictionary &dictionary, void *to, int64_t chunk, int64_t head) const {
    if (!to) return;
    for (int64_t c = 0; c < task.width; c++)
      store_row((T *)to + ((chunk * task.heads + head) * task.width + c) * task.atoms, dictionary.gathered + c * across,
                task.atoms);
  }

  int64_t apart() const { return task.heads * task.width; }  // keys of one head, from position to position

  void place(Dictionary &dictionary, int64_t pair, int64_t count, const void *given, const void *queries,
             void *of_given, void *of_queries) const {
    const int64_t rows = pair * count * task.atoms;
    const int64_t keys = (pair / task.heads * count * task.heads + pair % task.heads) * task.width;
    dictionary.given = given ? (const T *)given + rows : nullptr;
    dictionary.queries = queries ? (const T *)queries + keys : nullptr;
    dictionary.of_given = of_given ? (T *)of_given + rows : nullptr;
    dictionary.of_queries = of_queries ? (T *)of_queries + keys : nullptr;
  }

  // Some rows of a dictionary; as vectors they are in `rows` if they had to be computed.
  Numbers<T> part(const Dictionary &dictionary, int64_t first, int64_t count) const {
    if (dictionary.given) return {dictionary.given + first * task.atoms, task.atoms, 1};
    multiply_all<T, false>({dictionary.queries + first * apart(), apart(), 1}, count, task.width, dictionary.prototypes,
                           rows, across);
    share<T>(rows, count, task.atoms);
    return {(const T *)rows, across * lanes, 1};
  }

  static Numbers<T> flipped(Numbers<T> p) { return {p.data, p.column, p.row}; }

  // Takes `of_rows`, the gradient of some rows that were computed last, where it belongs.
  void leave(const Dictionary &dictionary, int64_t first, int64_t count) const {
    if (dictionary.given) {
      T *to = dictionary.of_given + first * task.atoms;
      for (int64_t n = 0; n < count; n++) store_row(to + n * task.atoms, of_rows + n * across, task.atoms);
      return;
    }
    for (int64_t n = 0; n < count; n++) unshare<T>(rows + n * across, of_rows + n * across, across);
    multiply_all<T, false>({(const T *)rows, across * lanes, 1}, count, task.atoms, dictionary.turned, of_keys, wide);
    for (int64_t n = 0; n < count; n++)
      store_row(dictionary.of_queries + (first + n) * apart(), of_keys + n * wide, task.width);
    multiply_all<T, true>({dictionary.queries + first * apart(), 1, apart()}, task.width, count, rows,
                          dictionary.gathered, across);
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

  // Of an atom of zeros, so that its inverse stays a number.
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
      multiply_all<T, true>(flipped(p), task.atoms, count, rows, gram, across);
      multiply_all<T, true>(flipped(p), task.atoms, count, map, drive, width);
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
    V *of_result = turned, *of_moved = turned + task.channels * across;  // u_T, and the others, with atoms along rows
    memset(of_gram, 0, sizeof(V) * task.atoms * across);
    memset(of_drive, 0, sizeof(V) * size);
    memset(of_step, 0, sizeof(V) * across);
    memset(of_code, 0, sizeof(V) * size);
    transpose<T>(code(task.steps), task.atoms, task.channels, width, of_result);
    each_part(reads, [&](int64_t first, int64_t count) {
      const Numbers<T> r = part(has_reader() ? reader : atoms, first, count);
      load_map(task.upstream, reads, pair, first, count, arrived);
      multiply_all<T, true>(flipped(r), task.atoms, count, arrived, of_code, width);
      if (!has_reader()) return;
      multiply<T>((const T *)arrived, count, task.channels, of_result, of_rows, across, width * lanes);
      leave(reader, first, count);
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
    if (task.of_step_size) store_row((T *)task.of_step_size + pair * task.atoms, of_step, task.atoms);
    transpose<T>(of_gram, task.atoms, task.atoms, across, gram);
    for (int64_t i = 0; i < task.atoms * across; i++) of_gram[i] += gram[i];
    transpose<T>(of_drive, task.atoms, task.channels, width, of_moved);
    each_part(task.positions, [&](int64_t first, int64_t count) {  // P (G + G^T) + x b^T, and the result's P
      const Numbers<T> p = part(atoms, first, count);
      multiply_all<T, false>(p, count, task.atoms, of_gram, of_rows, across);
      load_map(task.signal, task.positions, pair, first, count, map);
      multiply<T, true>((const T *)map, count, task.channels, of_moved, of_rows, across, width * lanes);
      if (!has_reader()) {
        load_map(task.upstream, reads, pair, first, count, arrived);
        multiply<T, true>((const T *)arrived, count, task.channels, of_result, of_rows, across, width * lanes);
      }
      if (task.totals)
        for (int64_t n = 0; n < count; n++)
          for (int64_t i = 0; i < across; i++) of_rows[n * across + i] += of_step[i];
      multiply_all<T, false>(p, count, task.atoms, of_drive, map, width);
      store_map(map, task.positions, pair, first, count, task.of_signal);
      leave(atoms, first, count);
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
};

}  // namespace
