// Conjugate gradients for P^T P w = target on the support of a code, w = 0 elsewhere. Each channel is a separate system.
//
// The same as `solve_on_support` in sparse/equilibrium.py, except that a block of channels stops when all of them have
// converged.
#pragma once
#include "bank.h"

namespace {

template <class T> class FilterSystem : FilterBank<T> {
  USING_FILTER_BANK;
  typedef decltype(V{} != V{}) Lane;  // of each channel: 0 or -1

  struct Vectors {  // codes of the filters (filters, positions) of a block, or of the atoms (atoms, blocks)
    Mask *support;
    V *solution, *residual, *direction, *product;
  };

  struct Channels {
    V square, tolerance, least_curvature;
    Lane active;
    C *explained;
  };

  Vectors *filter_codes, atom_codes;
  Channels *channels;
  C *spectrum;
  V *map;
  int64_t count;  // entries of a code that belong to filters

 public:
  using Bank::items;

  FilterSystem(const Filters &given, Workspace &workspace) : Bank(given, workspace) {
    count = task.filters * positions;
    filter_codes = workspace.take<Vectors>(width), channels = workspace.take<Channels>(width);
    spectrum = workspace.take<C>(size), map = workspace.take<V>(positions * width);
    for (int64_t index = 0; index < width; index++) {
      const Vectors taken = take(workspace, count);
      C *explained = workspace.take<C>(size);
      if (filter_codes) filter_codes[index] = taken, channels[index].explained = explained;
    }
    atom_codes = take(workspace, task.atoms * width);
  }

  void run(int64_t item) {
    const int64_t group = item / task.chunks, chunk = item % task.chunks;
    this->transform_filters(group);
    for (int64_t image = task.batch * chunk / task.chunks; image < task.batch * (chunk + 1) / task.chunks; image++) {
      begin(image);
      for (int64_t i = 0; i < task.iterations && any_active(); i++) {
        multiply_gram(image, group);
        for (int64_t index = 0; index < width; index++) advance(index);
      }
      for (int64_t index = 0; index < width; index++)
        each(index, [&](const Vectors &of, int64_t i, int64_t row) {
          store((T *)task.solution + offset(image, index, row), of.solution[i], parts[index].count);
        });
    }
  }

 private:
  static Vectors take(Workspace &workspace, int64_t count) {
    return {workspace.take<Mask>(count), workspace.take<V>(count), workspace.take<V>(count), workspace.take<V>(count),
            workspace.take<V>(count)};
  }

  int64_t offset(int64_t image, int64_t index, int64_t row) const {
    return (image * (count + task.atoms) + row) * task.heads * task.channels + parts[index].channel;
  }

  // Calls each(vectors, index in them, row of the code) for all entries of the code of a block.
  template <class Each> INLINE void each(int64_t index, Each each) const {
    for (int64_t i = 0; i < count; i++) each(filter_codes[index], i, i);
    for (int64_t m = 0; m < task.atoms; m++) each(atom_codes, m * width + index, count + m);
  }

  static INLINE V masked(V x, Mask mask) { return __builtin_convertvector(mask, Lane) ? x : V{}; }

  void begin(int64_t image) {
    for (int64_t index = 0; index < width; index++) {
      const Part &part = parts[index];
      Channels &own = channels[index];
      own.square = V{};
      each(index, [&](const Vectors &of, int64_t i, int64_t row) {
        Mask mask = {};
        const uint8_t *support = task.support + offset(image, index, row);
        for (int64_t lane = 0; lane < part.count; lane++) mask[lane] = support[lane] ? -1 : 0;
        const V target = load<T>((const T *)task.target + offset(image, index, row), part.count);
        const V residual = masked(target, mask);
        of.support[i] = mask, of.solution[i] = V{}, of.residual[i] = of.direction[i] = residual;
        own.square += residual * residual;
      });
      const int64_t row = task.bounds > 1 ? image : 0;
      const T *bound = (const T *)task.bound + row * task.heads * task.channels + part.channel;
      own.least_curvature = load<T>(bound, part.count) * (10 * Precision<T>::epsilon);
      own.tolerance = own.square * (Precision<T>::epsilon * Precision<T>::epsilon);
      own.active = own.square > own.tolerance;
    }
  }

  bool any_active() const {
    for (int64_t index = 0; index < width; index++)
      for (int64_t lane = 0; lane < lanes; lane++)
        if (channels[index].active[lane]) return true;
    return false;
  }

  // product = P^T P direction.
  void multiply_gram(int64_t image, int64_t head) {
    const T *dictionary = this->atoms(image, head);
    if (dense) multiply<T>(dictionary, positions, task.atoms, atom_codes.direction, map, width);
    for (int64_t index = 0; index < width; index++) {
      C *explained = channels[index].explained;
      if (dense)
        this->transform_map(map, index, explained);
      else
        memset(explained, 0, sizeof(C) * size);
      for (int64_t f = 0; f < task.filters; f++) {
        const C *kernel = parts[index].kernel + f * size;
        const V *direction = filter_codes[index].direction + f * positions;
        torus.transform(spectrum, scratch, [&](int64_t row, C *pair) {
          const V *at = direction + row * task.width;
          const bool second = row + 1 < task.height;
          for (int64_t x = 0; x < task.width; x++) pair[x] = {at[x], second ? at[x + task.width] : V{}};
        });
        this->each_frequency([&](int64_t i) { explained[i] = explained[i] + times<T>(kernel[i], spectrum[i]); });
      }
      for (int64_t f = 0; f < task.filters; f++) {
        const C *kernel = parts[index].kernel + f * size;
        V *product = filter_codes[index].product + f * positions;
        this->each_frequency([&](int64_t i) { spectrum[i] = conjugate_times<T>(kernel[i], explained[i]); });
        torus.invert(spectrum, scratch, [&](int64_t row, const C *pair) {
          V *at = product + row * task.width;
          const bool second = row + 1 < task.height;
          for (int64_t x = 0; x < task.width; x++) {
            at[x] = pair[x].re;
            if (second) at[x + task.width] = pair[x].im;
          }
        });
      }
      if (dense) this->invert_map(explained, index, map);
    }
    if (dense) multiply_transposed<T>(dictionary, task.atoms, positions, map, atom_codes.product, width);
  }

  void advance(int64_t index) {
    Channels &own = channels[index];
    V curvature = {}, length = {};
    each(index, [&](const Vectors &of, int64_t i, int64_t) {
      const V product = of.product[i] = masked(of.product[i], of.support[i]), direction = of.direction[i];
      curvature += direction * product, length += direction * direction;
    });
    const V tiny = all(Precision<T>::tiny);
    own.active &= curvature > own.least_curvature * length;
    const V step = own.active ? own.square / larger<T>(curvature, tiny) : V{};
    V square = {};
    each(index, [&](const Vectors &of, int64_t i, int64_t) {
      const V residual = of.residual[i] -= step * of.product[i];
      of.solution[i] += step * of.direction[i], square += residual * residual;
    });
    const V share = square / larger<T>(own.square, tiny);
    each(index, [&](const Vectors &of, int64_t i, int64_t) {
      of.direction[i] = of.residual[i] + share * of.direction[i];
    });
    own.square = square;
    own.active &= square > own.tolerance;
  }
};

}  // namespace
