// Maps on a grid with circular borders, and their half spectra.
//
// A half spectrum is held by columns, (W / 2 + 1, stride) with H <= stride: the frequencies of one column follow each
// other. Two rows of a map at a time are the real and the imaginary part of one complex row.
//
// Spectra of maps are divided by H W, so that the way back takes no factor; those of filters are not, so that
// spectrum(k * x) = spectrum(k) spectrum(x) for a filter k and a map x.
#pragma once
#include "fourier.h"

namespace {

template <class T> struct Torus {
  typedef Complex<T> C;
  int64_t height, width, half, stride;
  Fourier<T> along_rows, along_columns;

  static int64_t table_size(int64_t height, int64_t width) {
    return Fourier<T>::table_size(height) + Fourier<T>::table_size(width);
  }

  T *prepare(int64_t rows, int64_t columns, T *table) {
    height = rows, width = columns, half = width / 2 + 1;
    stride = height | 1;  // odd: columns at a distance of a power of two would share few lines of the cache
    return along_columns.prepare(height, along_rows.prepare(width, table));
  }

  int64_t positions() const { return height * width; }
  int64_t spectrum_size() const { return half * stride; }
  int64_t room_size() const {
    const int64_t longest = height > width ? height : width;
    return longest + Fourier<T>::room_size(longest);
  }

  // Two rows of real numbers to their half spectra, times 2 `half_scale`, in rows `row` and, if there is one, `row + 1`.
  INLINE void enter_rows(C *pair, C *spectrum, int64_t row, T half_scale, C *room) const {
    along_rows.template run<false>(pair, pair, room);
    split_rows<0>(pair, spectrum, row, half_scale);
  }

  INLINE void leave_rows(const C *spectrum, int64_t row, C *pair, C *room) const {
    join_rows<0>(spectrum, row, pair);
    along_rows.template run<true>(pair, pair, room);
  }

  // The spectrum of a complex row to those of its real and imaginary parts, and back. The width is n, or any if n = 0.
  template <int known> INLINE void split_rows(const C *pair, C *spectrum, int64_t row, T half_scale) const {
    const int64_t n = known ? known : width;
    const bool second = row + 1 < height;
    _Pragma("GCC unroll 1") for (int64_t k = 0; k < n / 2 + 1; k++) {
      const C a = pair[k], b = pair[k ? n - k : 0];
      C *at = spectrum + k * stride + row;
      at[0] = {(a.re + b.re) * half_scale, (a.im - b.im) * half_scale};
      if (second) at[1] = {(a.im + b.im) * half_scale, (b.re - a.re) * half_scale};
    }
  }

  template <int known> INLINE void join_rows(const C *spectrum, int64_t row, C *pair) const {
    const int64_t n = known ? known : width;
    const bool second = row + 1 < height;
    _Pragma("GCC unroll 1") for (int64_t k = 0; k < n / 2 + 1; k++) {
      const C *at = spectrum + k * stride + row;
      const C a = at[0], b = second ? at[1] : C{};
      if (k == 0 || 2 * k == n) {
        pair[k] = {a.re, b.re};
      } else {
        pair[k] = {a.re - b.im, a.im + b.re};
        pair[n - k] = {a.re + b.im, b.re - a.im};
      }
    }
  }

  // change(position, values) of all values of the map with this spectrum, two rows at a time.
  template <class Change> __attribute__((noinline)) void change_map(C *spectrum, C *room, Change change) const {
    C *pair = room, *rest = room + width;
    for (int64_t row = 0; row < height; row += 2) {
      leave_rows(spectrum, row, pair, rest);
      for (int64_t x = 0; x < width; x++) pair[x] = change(row / 2 * width + x, pair[x]);
      enter_rows(pair, spectrum, row, map_scale(), rest);
    }
  }

  T map_scale() const { return T(.5) / T(positions()); }

  template <bool inverse> INLINE void columns(C *spectrum, C *room) const {
    along_columns.template run<inverse>(spectrum, spectrum, room, half, stride);
  }

  // The spectrum of a map, or of a filter, whose rows `load(row, pair)` gives.
  template <class Load> INLINE void transform(C *spectrum, C *room, Load load) const {
    transform_scaled(spectrum, room, map_scale(), load);
  }
  template <class Load> INLINE void transform_filter(C *spectrum, C *room, Load load) const {
    transform_scaled(spectrum, room, T(.5), load);
  }
  template <class Load> INLINE void transform_scaled(C *spectrum, C *room, T half_scale, Load load) const {
    for (int64_t row = 0; row < height; row += 2) {
      load(row, room);
      enter_rows(room, spectrum, row, half_scale, room + width);
    }
    columns<false>(spectrum, room);
  }

  // `store(row, pair)` of the map with this spectrum, which is lost.
  template <class Store> INLINE void invert(C *spectrum, C *room, Store store) const {
    columns<true>(spectrum, room);
    for (int64_t row = 0; row < height; row += 2) {
      leave_rows(spectrum, row, room, room + width);
      store(row, room);
    }
  }
};

// Products of spectra: k x, which convolves, and conj(k) x, which correlates.
template <class T> INLINE Complex<T> times(Complex<T> k, Complex<T> x) {
  return {k.re * x.re - k.im * x.im, k.re * x.im + k.im * x.re};
}
template <class T> INLINE Complex<T> conjugate_times(Complex<T> k, Complex<T> x) {
  return {k.re * x.re + k.im * x.im, k.re * x.im - k.im * x.re};
}
template <class T> INLINE Complex<T> operator+(Complex<T> a, Complex<T> b) { return {a.re + b.re, a.im + b.im}; }
template <class T> INLINE Complex<T> operator-(Complex<T> a, Complex<T> b) { return {a.re - b.re, a.im - b.im}; }
template <class T> INLINE Complex<T> operator*(Complex<T> a, Vector<T> b) { return {a.re * b, a.im * b}; }

}  // namespace
