// Maps on a grid with circular borders, and their half spectra.
//
// A half spectrum is stored by columns, (W / 2 + 1, stride) with H <= stride, so that the frequencies of a column are
// contiguous. Rows are transformed in pairs, as the real and the imaginary part of one complex row.
//
// Spectra of maps are divided by H W, so that the inverse needs no factor; those of filters are not, so that
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
    stride = height | 1;  // odd: with a power of two, columns would compete for a few cache lines
    return along_columns.prepare(height, along_rows.prepare(width, table));
  }

  int64_t positions() const { return height * width; }
  int64_t spectrum_size() const { return half * stride; }
  int64_t workspace_size() const {
    const int64_t longest = height > width ? height : width;
    return longest + Fourier<T>::workspace_size(longest);
  }

  // The half spectra of two real rows, times 2 `half_scale`, into rows `row` and `row + 1`, if that exists.
  INLINE void transform_rows(C *pair, C *spectrum, int64_t row, T half_scale, C *workspace) const {
    along_rows.template run<false>(pair, pair, workspace);
    split_rows<0>(pair, spectrum, row, half_scale);
  }

  INLINE void invert_rows(const C *spectrum, int64_t row, C *pair, C *workspace) const {
    join_rows<0>(spectrum, row, pair);
    along_rows.template run<true>(pair, pair, workspace);
  }

  // The spectrum of a complex row as those of its real and imaginary parts, and back. `known` is the width at compile
  // time, or 0.
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

  // Replaces the values of the map with this spectrum by change(position, values), two rows at a time.
  template <class Change> __attribute__((noinline)) void change_map(C *spectrum, C *workspace, Change change) const {
    C *pair = workspace, *rest = workspace + width;
    for (int64_t row = 0; row < height; row += 2) {
      invert_rows(spectrum, row, pair, rest);
      for (int64_t x = 0; x < width; x++) pair[x] = change(row / 2 * width + x, pair[x]);
      transform_rows(pair, spectrum, row, map_scale(), rest);
    }
  }

  T map_scale() const { return T(.5) / T(positions()); }

  template <bool inverse> INLINE void columns(C *spectrum, C *workspace) const {
    along_columns.template run<inverse>(spectrum, spectrum, workspace, half, stride);
  }

  // The spectrum of a map, or of a filter; load(row, pair) provides its rows.
  template <class Load> INLINE void transform(C *spectrum, C *workspace, Load load) const {
    transform_scaled(spectrum, workspace, map_scale(), load);
  }
  template <class Load> INLINE void transform_filter(C *spectrum, C *workspace, Load load) const {
    transform_scaled(spectrum, workspace, T(.5), load);
  }
  template <class Load> INLINE void transform_scaled(C *spectrum, C *workspace, T half_scale, Load load) const {
    for (int64_t row = 0; row < height; row += 2) {
      load(row, workspace);
      transform_rows(workspace, spectrum, row, half_scale, workspace + width);
    }
    columns<false>(spectrum, workspace);
  }

  // Calls store(row, pair) on the rows of the map with this spectrum. The spectrum is overwritten.
  template <class Store> INLINE void invert(C *spectrum, C *workspace, Store store) const {
    columns<true>(spectrum, workspace);
    for (int64_t row = 0; row < height; row += 2) {
      invert_rows(spectrum, row, workspace, workspace + width);
      store(row, workspace);
    }
  }
};

// Products of spectra: k x is a convolution, conj(k) x a correlation.
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
