// Conjugate gradients for P^T P w = target on the support of a code, w = 0 elsewhere: each channel a system of its own.
//
// As `solve_on_support` in sparse/equilibrium.py has it, but that a block of channels stops when all of its own have.
#pragma once
#include "bank.h"

namespace {

template <class T> class FilterSystem : FilterBank<T> {
  typedef FilterBank<T> Bank;
  typedef typename Bank::V V;
  typedef typename Bank::C C;
  typedef typename Bank::Mask Mask;
  typedef typename Bank::Part Part;
  typedef decltype(V{} != V{}) Lane;  // which of the channels: 0 or -1
  using Bank::dense, Bank::lanes, Bank::parts, Bank::positions, Bank::scratch, Bank::size, Bank::task, Bank::torus,
      Bank::width;

  struct Vectors {  // of codes: of the filters (filters, positions) of a block, or of the atoms (atoms, blocks)
    Mask *support;
    V *solution, *residual, *direction, *bent;
  };

  struct Channels {
    V square, solved, unseen;
    Lane going;
    C *explained;
  };

  Vectors *filters, of_atoms;
  Channels *channels;
  C *spectrum;
  V *map;
  int64_t count;  // of codes of filters

 public:
  using Bank::items;

  FilterSystem(const Filters &given, Room &room) : Bank(given, room) {
    count = task.filters * positions;
    filters = room.take<Vectors>(width), channels = room.take<Channels>(width);
    spectrum = room.take<C>(size), map = room.take<V>(positions * width);
    for (int64_t index = 0; index < width; index++) {
      const Vectors taken = take(room, count);
      C *explained = room.take<C>(size);
      if (filters) filters[index] = taken, channels[index].explained = explained;
    }
    of_atoms = take(room, task.atoms * width);
  }

  void run(int64_t item) {
    const int64_t group = item / task.chunks, chunk = item % task.chunks;
    this->enter_filters(group);
    for (int64_t image = task.batch * chunk / task.chunks; image < task.batch * (chunk + 1) / task.chunks; image++) {
      begin(image);
      for (int64_t i = 0; i < task.iterations && any(); i++) {
        bend(image, group);
        for (int64_t index = 0; index < width; index++) advance(index);
      }
      for (int64_t index = 0; index < width; index++)
        each(index, [&](const Vectors &of, int64_t i, int64_t row) {
          store((T *)task.solution + place(image, index, row), of.solution[i], parts[index].count);
        });
    }
  }

 private:
  static Vectors take(Room &room, int64_t count) {
    return {room.take<Mask>(count), room.take<V>(count), room.take<V>(count), room.take<V>(count), room.take<V>(count)};
  }

  int64_t place(int64_t image, int64_t index, int64_t row) const {
    return (image * (count + task.atoms) + row) * task.heads * task.channels + parts[index].channel;
  }

  // each(vectors, position in them, row of the code) of all of the codes of a block.
  template <class Each> INLINE void each(int64_t index, Each each) const {
    for (int64_t i = 0; i < count; i++) each(filters[index], i, i);
    for (int64_t m = 0; m < task.atoms; m++) each(of_atoms, m * width + index, count + m);
  }

  static INLINE V kept(V x, Mask mask) { return __builtin_convertvector(mask, Lane) ? x : V{}; }

  void begin(int64_t image) {
    for (int64_t index = 0; index < width; index++) {
      const Part &part = parts[index];
      Channels &own = channels[index];
      own.square = V{};
      each(index, [&](const Vectors &of, int64_t i, int64_t row) {
        Mask mask = {};
        const uint8_t *support = task.support + place(image, index, row);
        for (int64_t lane = 0; lane < part.count; lane++) mask[lane] = support[lane] ? -1 : 0;
        const V target = load<T>((const T *)task.target + place(image, index, row), part.count);
        const V residual = kept(target, mask);
        of.support[i] = mask, of.solution[i] = V{}, of.residual[i] = of.direction[i] = residual;
        own.square += residual * residual;
      });
      const T *bound = (const T *)task.bound + (task.bounds > 1 ? image : 0) * task.heads * task.channels + part.channel;
      own.unseen = load<T>(bound, part.count) * (10 * Precision<T>::epsilon);
      own.solved = own.square * (Precision<T>::epsilon * Precision<T>::epsilon);
      own.going = own.square > own.solved;
    }
  }

  bool any() const {
    for (int64_t index = 0; index < width; index++)
      for (int64_t lane = 0; lane < lanes; lane++)
        if (channels[index].going[lane]) return true;
    return false;
  }

  // P^T P of the directions.
  void bend(int64_t image, int64_t head) {
    const T *dictionary = this->atoms(image, head);
    if (dense) multiply<T>(dictionary, positions, task.atoms, of_atoms.direction, map, width);
    for (int64_t index = 0; index < width; index++) {
      C *explained = channels[index].explained;
      if (dense)
        this->enter_map(map, index, explained);
      else
        memset(explained, 0, sizeof(C) * size);
      for (int64_t f = 0; f < task.filters; f++) {
        const C *kernel = parts[index].kernel + f * size;
        const V *direction = filters[index].direction + f * positions;
        torus.transform(spectrum, scratch, [&](int64_t row, C *pair) {
          const V *at = direction + row * task.width;
          const bool second = row + 1 < task.height;
          for (int64_t x = 0; x < task.width; x++) pair[x] = {at[x], second ? at[x + task.width] : V{}};
        });
        this->each_frequency([&](int64_t i) { explained[i] = explained[i] + times<T>(kernel[i], spectrum[i]); });
      }
      for (int64_t f = 0; f < task.filters; f++) {
        const C *kernel = parts[index].kernel + f * size;
        V *bent = filters[index].bent + f * positions;
        this->each_frequency([&](int64_t i) { spectrum[i] = conjugate_times<T>(kernel[i], explained[i]); });
        torus.invert(spectrum, scratch, [&](int64_t row, const C *pair) {
          V *at = bent + row * task.width;
          const bool second = row + 1 < task.height;
          for (int64_t x = 0; x < task.width; x++) {
            at[x] = pair[x].re;
            if (second) at[x + task.width] = pair[x].im;
          }
        });
      }
      if (dense) this->leave_map(explained, index, map);
    }
    if (dense) multiply_transposed<T>(dictionary, task.atoms, positions, map, of_atoms.bent, width);
  }

  void advance(int64_t index) {
    Channels &own = channels[index];
    V curvature = {}, length = {};
    each(index, [&](const Vectors &of, int64_t i, int64_t) {
      const V bent = of.bent[i] = kept(of.bent[i], of.support[i]), direction = of.direction[i];
      curvature += direction * bent, length += direction * direction;
    });
    const V tiny = all(Precision<T>::tiny);
    own.going &= curvature > own.unseen * length;
    const V step = own.going ? own.square / larger<T>(curvature, tiny) : V{};
    V square = {};
    each(index, [&](const Vectors &of, int64_t i, int64_t) {
      const V residual = of.residual[i] -= step * of.bent[i];
      of.solution[i] += step * of.direction[i], square += residual * residual;
    });
    const V share = square / larger<T>(own.square, tiny);
    each(index, [&](const Vectors &of, int64_t i, int64_t) {
      of.direction[i] = of.residual[i] + share * of.direction[i];
    });
    own.square = square;
    own.going &= square > own.solved;
  }
};

}  // namespace
