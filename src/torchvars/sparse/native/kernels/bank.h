// Spectra of the filters of a block of channels; loading and storing signals and maps of such a block.
#pragma once
#include "bounds.h"
#include "task.h"
#include "torus.h"

// The names of FilterBank<T> in a class template derived from it.
#define USING_FILTER_BANK                                                                                           \
  typedef FilterBank<T> Bank;                                                                                       \
  typedef typename Bank::V V;                                                                                       \
  typedef typename Bank::C C;                                                                                       \
  typedef typename Bank::Mask Mask;                                                                                 \
  typedef typename Bank::Part Part;                                                                                 \
  using Bank::dense, Bank::lanes, Bank::parts, Bank::positions, Bank::scratch, Bank::size, Bank::task, Bank::torus, \
      Bank::width

namespace {

template <class T> class FilterBank {
 protected:
  typedef Vector<T> V;
  typedef Complex<T> C;
  typedef typename Lanes<T>::M Mask;
  static constexpr int lanes = Lanes<T>::count;

  struct Part {              // one block of channels
    int64_t channel, count;  // the first channel, and their number: at most one for each lane
    C *kernel;
    V *power;  // sum_f |k_f|^2
  };

  const Filters &task;
  Torus<T> torus;
  int64_t size, positions, width;  // size of a spectrum, positions of the grid, blocks of a head
  bool dense;
  Part *parts;
  C *scratch;

  FilterBank(const Filters &given, Workspace &workspace) : task(given) {
    torus.height = task.height, torus.width = task.width, dense = task.atoms > 0;
    T *table = workspace.take<T>(Torus<T>::table_size(task.height, task.width) + 8);
    if (table)
      torus.prepare(task.height, task.width, table);
    else
      torus.half = task.width / 2 + 1, torus.stride = task.height | 1;
    size = torus.spectrum_size(), positions = torus.positions();
    width = dense ? vectors_of<T>(task.channels) : 1;
    scratch = workspace.take<C>(torus.workspace_size());
    parts = workspace.take<Part>(width);
    for (int64_t index = 0; index < width; index++) {
      const Part part = {0, 0, workspace.take<C>(task.filters * size), workspace.take<V>(size)};
      if (parts) parts[index] = part;
    }
  }

 public:
  // Groups are heads if there are atoms, which belong to a head, else blocks of channels. The images of each group are
  // split into chunks.
  static int64_t groups(const Filters &task) {
    return task.atoms ? task.heads : vectors_of<T>(task.heads * task.channels);
  }
  static int64_t items(const Filters &task) { return groups(task) * task.chunks; }

 protected:
  void transform_filters(int64_t group) {
    const int64_t channels = task.heads * task.channels, first = group * (dense ? task.channels : lanes);
    const int64_t end = dense ? first + task.channels : channels;
    for (int64_t index = 0; index < width; index++) {
      Part &part = parts[index];
      part.channel = first + index * lanes;
      part.count = end - part.channel < lanes ? end - part.channel : lanes;
      for (int64_t f = 0; f < task.filters; f++) {
        const C *kernel = part.kernel + f * size;
        torus.transform_filter(part.kernel + f * size, scratch,
                               [&](int64_t row, C *pair) { load_filter(part, f, row, pair); });
        for (int64_t i = 0; i < size; i++) {
          const V energy = kernel[i].re * kernel[i].re + kernel[i].im * kernel[i].im;
          part.power[i] = f ? part.power[i] + energy : energy;
        }
      }
    }
  }

  // The row of a filter, centred at the origin, on a row of the grid; -1 if there is none.
  INLINE int64_t filter_row(int64_t row) const {
    if (row >= task.height) return -1;
    const int64_t at = (row + task.filter_height / 2) % task.height;
    return at < task.filter_height ? at : -1;
  }

  // The column of the grid on which the first column of a filter lies.
  INLINE int64_t filter_column() const { return (task.width - task.filter_width / 2) % task.width; }

  INLINE int64_t filter_start(const Part &part, int64_t lane, int64_t f, int64_t row) const {
    return (((part.channel + lane) * task.filters + f) * task.filter_height + row) * task.filter_width;
  }

  void load_filter(const Part &part, int64_t f, int64_t row, C *pair) const {
    memset(pair, 0, sizeof(C) * task.width);
    for (int second = 0; second < 2; second++) {
      const int64_t at = filter_row(row + second);
      if (at < 0) continue;
      const T *from = (const T *)task.bank + filter_start(part, 0, f, at);
      const int64_t stride = filter_start(part, 1, f, at) - filter_start(part, 0, f, at);
      const int64_t ahead = 4 * task.filter_width;
      for (int64_t lane = 0; lane < part.count; lane++)  // a cache line holds values of one channel only
        for (int64_t i = 0; i < task.filter_width; i += 64 / sizeof(T))
          __builtin_prefetch(from + lane * stride + ahead + i);
      for (int64_t i = 0, x = filter_column(); i < task.filter_width; i++, x = x + 1 < task.width ? x + 1 : 0) {
        T values[lanes] = {};  // whole vectors: reading back lanes just written one by one would stall
        for (int64_t lane = 0; lane < part.count; lane++) values[lane] = from[lane * stride + i];
        memcpy(second ? &pair[x].im : &pair[x].re, values, sizeof(V));
      }
    }
  }

  // Signals (batch, H W, heads channels)

  INLINE int64_t position(const Part &part, int64_t image, int64_t n) const {
    return (image * positions + n) * task.heads * task.channels + part.channel;
  }

  INLINE void load_rows(const void *from, const Part &part, int64_t image, int64_t row, C *pair) const {
    const T *at = (const T *)from + position(part, image, row * task.width);
    const int64_t channels = task.heads * task.channels;
    const bool second = row + 1 < task.height;
    for (int64_t x = 0; x < task.width; x++)
      pair[x] = {load<T>(at + x * channels, part.count),
                 second ? load<T>(at + (x + task.width) * channels, part.count) : V{}};
  }

  template <class Change>
  INLINE void store_rows(void *to, const Part &part, int64_t image, int64_t row, const C *pair, Change change) const {
    T *at = (T *)to + position(part, image, row * task.width);
    const int64_t channels = task.heads * task.channels;
    const bool second = row + 1 < task.height;
    for (int64_t x = 0; x < task.width; x++) {
      const int64_t n = row * task.width + x;
      store(at + x * channels, change(n, pair[x].re), part.count);
      if (second) store(at + (x + task.width) * channels, change(n + task.width, pair[x].im), part.count);
    }
  }

  // The dense dictionary of a head of an image, and maps of one of its blocks of channels

  INLINE const T *atoms(int64_t image, int64_t head) const {
    return (const T *)task.dictionary + (image * task.heads + head) * positions * task.atoms;
  }

  INLINE void transform_map(const V *map, int64_t index, C *spectrum) const {
    torus.transform(spectrum, scratch, [&](int64_t row, C *pair) {
      const V *at = map + row * task.width * width + index;
      const bool second = row + 1 < task.height;
      for (int64_t x = 0; x < task.width; x++)
        pair[x] = {at[x * width], second ? at[(x + task.width) * width] : V{}};
    });
  }

  INLINE void invert_map(C *spectrum, int64_t index, V *map) const {
    torus.invert(spectrum, scratch, [&](int64_t row, const C *pair) {
      V *at = map + row * task.width * width + index;
      const bool second = row + 1 < task.height;
      for (int64_t x = 0; x < task.width; x++) {
        at[x * width] = pair[x].re;
        if (second) at[(x + task.width) * width] = pair[x].im;
      }
    });
  }

  template <class Each> INLINE void each_frequency(Each each) const {
    for (int64_t k = 0; k < torus.half; k++)
      for (int64_t i = k * torus.stride; i < k * torus.stride + torus.height; i++) each(i);
  }
};

}  // namespace
