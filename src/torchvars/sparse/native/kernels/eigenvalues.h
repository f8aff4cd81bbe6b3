// Quantities of filters that are computed before the first step: sum_f |k_f|^2, and a bound on the eigenvalues of their
// union with atoms.
#pragma once
#include "bank.h"

namespace {

template <class T> class FilterBound : FilterBank<T> {
  USING_FILTER_BANK;
  static constexpr int64_t part_size = 128;  // positions at a time

  int64_t across;  // number of vectors that hold the atoms
  C *spectrum;
  V *energy, *gram, *rows, *share;
  T *direction;

 public:
  using Bank::items;

  FilterBound(const Filters &given, Workspace &workspace) : Bank(given, workspace) {
    across = vectors_of<T>(task.atoms);
    if (!task.eigenvalue) return;
    spectrum = workspace.take<C>(size), energy = workspace.take<V>(size), direction = workspace.take<T>(2 * positions);
    gram = workspace.take<V>(2 * task.atoms * across), rows = workspace.take<V>(part_size * across);
    share = workspace.take<V>(2 * across);
  }

  void run(int64_t item) {
    const int64_t group = item / task.chunks, chunk = item % task.chunks;
    this->transform_filters(group);
    if (task.power)
      for (int64_t index = 0; index < width; index++) store_power(parts[index]);
    if (task.eigenvalue)
      for (int64_t image = task.batch * chunk / task.chunks; image < task.batch * (chunk + 1) / task.chunks; image++)
        bound(image, group);
  }

 private:
  void store_power(const Part &part) const {
    for (int64_t lane = 0; lane < part.count; lane++) {
      T *to = (T *)task.power + (part.channel + lane) * task.height * torus.half;
      for (int64_t h = 0; h < task.height; h++)
        for (int64_t k = 0; k < torus.half; k++) to[h * torus.half + k] = part.power[k * torus.stride + h][lane];
    }
  }

  // Bounds on the eigenvalues of the union of filters and atoms: see Joint.find_bound. `direction` holds the top
  // eigenvector v of P P^T, approximately, and then P P^T v.
  void bound(int64_t image, int64_t head) {
    const T *atoms = this->atoms(image, head);
    const int64_t square = task.atoms * across;
    memset(gram, 0, sizeof(V) * square);
    for (int64_t first = 0; first < positions; first += part_size) {
      const int64_t count = positions - first < part_size ? positions - first : part_size;
      for (int64_t n = 0; n < count; n++)
        load_row(atoms + (first + n) * task.atoms, task.atoms, rows + n * across);
      multiply_transposed<T, true>(atoms + first * task.atoms, task.atoms, count, rows, gram, across);
    }
    const T dense_bound = perron_eigenvalue<T>(gram, task.atoms, share, share + across);
    T *product = direction + positions;
    const T norm = root(synthesize(atoms, share, direction));
    for (int64_t n = 0; n < positions; n++) direction[n] /= norm > T(1e-12) ? norm : T(1e-12);
    memset(share, 0, sizeof(V) * across);
    for (int64_t n = 0; n < positions; n++)
      for (int64_t i = 0; i < across; i++)
        share[i] += load<T>(atoms + n * task.atoms + i * lanes, task.atoms - i * lanes) * direction[n];
    V sum = {};
    for (int64_t i = 0; i < across; i++) sum += share[i] * share[i];
    const T dense_mean = total<T>(sum);
    synthesize(atoms, share, product);
    T dense_square = 0;
    for (int64_t n = 0; n < positions; n++) {
      const T deviation = product[n] - dense_mean * direction[n];
      dense_square += deviation * deviation;
    }
    for (int64_t m = 0; m < task.atoms; m++)  // the Gram matrix of the atoms without their component along v
      for (int64_t i = 0; i < across; i++) gram[m * across + i] -= share[i] * ((const T *)share)[m];
    const T rest = largest_eigenvalue<T>(gram, gram + square, task.atoms, 1.0);
    torus.transform(spectrum, scratch, [&](int64_t row, C *pair) {
      for (int64_t x = 0; x < task.width; x++) {
        const T *at = direction + row * task.width + x;
        pair[x] = {all(at[0]), row + 1 < task.height ? all(at[task.width]) : V{}};
      }
    });
    for (int64_t k = 0; k < torus.half; k++)
      for (int64_t i = k * torus.stride; i < k * torus.stride + torus.height; i++) {
        const C x = spectrum[i];
        energy[i] = (x.re * x.re + x.im * x.im) * (T(positions) * (k == 0 || 2 * k == task.width ? T(1) : T(2)));
      }
    for (int64_t index = 0; index < width; index++) {
      const Part &part = parts[index];
      V mean = {}, variance = {}, most = {};
      this->each_frequency([&](int64_t i) {
        mean += energy[i] * part.power[i], most = larger<T>(part.power[i], most);
      });
      this->each_frequency([&](int64_t i) {
        const V deviation = part.power[i] - mean;
        variance += energy[i] * deviation * deviation;
      });
      V bound = {};
      for (int64_t lane = 0; lane < lanes; lane++) {
        const T first = rounded_up<T>(most[lane], positions), d = rest + first, a = dense_mean + mean[lane];
        const T b = root(dense_square) + root(variance[lane]);
        const T split = (a + d) / 2 + root((a - d) / 2 * ((a - d) / 2) + b * b);
        const T tight = rounded_up<T>(split, task.filters * positions + task.atoms), sum = first + dense_bound;
        bound[lane] = sum < tight ? sum : tight;
      }
      store<T>((T *)task.eigenvalue + image * task.heads * task.channels + part.channel, bound, part.count);
    }
  }

  // Writes P u of one code, and returns its squared norm.
  T synthesize(const T *atoms, const V *code, T *to) const {
    T square = 0;
    for (int64_t n = 0; n < positions; n++) {
      V sum = {};
      for (int64_t i = 0; i < across; i++)
        sum += load<T>(atoms + n * task.atoms + i * lanes, task.atoms - i * lanes) * code[i];
      to[n] = total<T>(sum), square += to[n] * to[n];
    }
    return square;
  }
};

}  // namespace
