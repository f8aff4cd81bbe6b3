// Discrete Fourier transforms of any length, of one channel per lane.
//
// Lengths up to 16 are transformed in registers, by code that is unrolled at compile time. Longer ones are split into
// such factors by Stockham's algorithm, which needs no reordering. A prime factor above 16 is a direct sum.
#pragma once
#include <math.h>

#include "vectors.h"

namespace {

template <class T> struct Complex {
  Vector<T> re, im;
};

constexpr int LONGEST = 16;  // longest transform in registers

// exp(-2 pi i j / n), as cos and sin of the angle, interleaved.
template <class T> void fill_waves(T *waves, int64_t n) {
  for (int64_t j = 0; j < n; j++) {
    const double angle = 6.283185307179586476925286766559 * (double)j / (double)n;
    waves[2 * j] = (T)cos(angle), waves[2 * j + 1] = (T)sin(angle);
  }
}

template <class T> INLINE Complex<T> rotated(Complex<T> x, T cosine, T sine) {  // by exp(-i angle)
  return {x.re * cosine + x.im * sine, x.im * cosine - x.re * sine};
}

// The transform of length n of x, in place and in order. `waves` is the table of length n `stride`.
template <class T, int n, int stride> INLINE void dft(Complex<T> *x, const T *waves);

template <class T, int n, int stride> INLINE void dft_odd(Complex<T> *x, const T *waves) {
  constexpr int half = (n - 1) / 2;
  Complex<T> sum[half], difference[half];
  const Complex<T> first = x[0];
  Complex<T> total = first;
  UNROLL for (int m = 0; m < half; m++) {
    const Complex<T> a = x[m + 1], b = x[n - 1 - m];
    sum[m] = {a.re + b.re, a.im + b.im}, difference[m] = {a.re - b.re, a.im - b.im};
    total.re += sum[m].re, total.im += sum[m].im;
  }
  x[0] = total;
  UNROLL for (int k = 1; k <= half; k++) {
    Complex<T> even = first, odd;
    UNROLL for (int m = 0; m < half; m++) {
      const int at = k * (m + 1) % n * stride;
      const T cosine = waves[2 * at], sine = waves[2 * at + 1];
      even.re += sum[m].re * cosine, even.im += sum[m].im * cosine;
      if (m == 0)
        odd = {difference[m].re * sine, difference[m].im * sine};
      else
        odd.re += difference[m].re * sine, odd.im += difference[m].im * sine;
    }
    x[k] = {even.re + odd.im, even.im - odd.re};
    x[n - k] = {even.re - odd.im, even.im + odd.re};
  }
}

// n = a b for coprime a and b: no twiddle factors are needed (Good and Thomas).
template <class T, int a, int b, int stride> INLINE void dft_prime_factors(Complex<T> *x, const T *waves) {
  constexpr int n = a * b;
  Complex<T> row[b], grid[a][b];
  UNROLL for (int i = 0; i < a; i++) {
    UNROLL for (int j = 0; j < b; j++) row[j] = x[(i * b + j * a) % n];
    dft<T, b, stride * a>(row, waves);
    UNROLL for (int j = 0; j < b; j++) grid[i][j] = row[j];
  }
  UNROLL for (int j = 0; j < b; j++) {
    Complex<T> column[a];
    UNROLL for (int i = 0; i < a; i++) column[i] = grid[i][j];
    dft<T, a, stride * b>(column, waves);
    UNROLL for (int i = 0; i < a; i++) grid[i][j] = column[i];
  }
  UNROLL for (int k = 0; k < n; k++) x[k] = grid[k % a][k % b];
}

// n = a b, with twiddle factors (Cooley and Tukey).
template <class T, int a, int b, int stride> INLINE void dft_split(Complex<T> *x, const T *waves) {
  constexpr int n = a * b;
  Complex<T> grid[a][b];
  UNROLL for (int j = 0; j < b; j++) {
    Complex<T> column[a];
    UNROLL for (int i = 0; i < a; i++) column[i] = x[j + b * i];
    dft<T, a, stride * b>(column, waves);
    UNROLL for (int i = 0; i < a; i++) {
      const int at = i * j;
      if (at == 0)
        grid[i][j] = column[i];
      else if (4 * at == n)
        grid[i][j] = {column[i].im, -column[i].re};
      else
        grid[i][j] = rotated<T>(column[i], waves[2 * stride * at], waves[2 * stride * at + 1]);
    }
  }
  UNROLL for (int i = 0; i < a; i++) {
    dft<T, b, stride * a>(grid[i], waves);
    UNROLL for (int j = 0; j < b; j++) x[i + a * j] = grid[i][j];
  }
}

template <class T, int n, int stride> INLINE void dft(Complex<T> *x, const T *waves) {
  if constexpr (n == 2) {
    const Complex<T> a = x[0], b = x[1];
    x[0] = {a.re + b.re, a.im + b.im}, x[1] = {a.re - b.re, a.im - b.im};
  } else if constexpr (n == 4 || n == 8) {
    dft_split<T, 2, n / 2, stride>(x, waves);
  } else if constexpr (n == 16) {
    dft_split<T, 4, 4, stride>(x, waves);
  } else if constexpr (n == 9) {
    dft_split<T, 3, 3, stride>(x, waves);
  } else if constexpr (n == 12) {
    dft_prime_factors<T, 4, 3, stride>(x, waves);
  } else if constexpr (n == 15) {
    dft_prime_factors<T, 3, 5, stride>(x, waves);
  } else if constexpr (n % 2 == 0) {
    dft_prime_factors<T, 2, n / 2, stride>(x, waves);
  } else if constexpr (n > 1) {
    dft_odd<T, n, stride>(x, waves);
  }
}

// Interleaved real and imaginary parts. Inverse transforms exchange the two, on input and on output.
template <class T> struct Parts {
  Vector<T> *re, *im;

  Parts(const Complex<T> *data, bool exchanged)
      : re((Vector<T> *)data + exchanged), im((Vector<T> *)data + !exchanged) {}
  INLINE Complex<T> load(int64_t index) const { return {re[2 * index], im[2 * index]}; }
  INLINE void store(int64_t index, Complex<T> x) const { re[2 * index] = x.re, im[2 * index] = x.im; }
};

// `count` transforms in registers; `distance` is from one to the next.
template <class T, int n>
__attribute__((noinline)) void run_whole(Parts<T> in, Parts<T> out, const T *waves, int64_t count, int64_t distance) {
  for (; count--; in.re += 2 * distance, in.im += 2 * distance, out.re += 2 * distance, out.im += 2 * distance) {
    Complex<T> x[n];
    UNROLL for (int j = 0; j < n; j++) x[j] = in.load(j);
    dft<T, n, 1>(x, waves);
    UNROLL for (int j = 0; j < n; j++) out.store(j, x[j]);
  }
}

// A pass of Stockham's algorithm, as in FFTPACK: data (inner, radix, outer) becomes (inner, outer, radix), first index
// fastest, times exp(-2 pi i j k outer / n), where j is the index along radix and k along inner.
template <class T> struct Pass {
  int64_t radix, inner, outer;
  const T *waves, *twiddles;  // of length radix; (inner, radix - 1)
};

template <class T, int radix>
__attribute__((noinline)) void run_pass(const Pass<T> &pass, Parts<T> in, Parts<T> out) {
  const T *waves = pass.waves;
  const int64_t inners = pass.inner, outers = pass.outer;
  for (int64_t outer = 0; outer < outers; outer++)
    for (int64_t inner = 0; inner < inners; inner++) {
      Complex<T> x[radix];
      UNROLL for (int j = 0; j < radix; j++) x[j] = in.load(inner + inners * (j + radix * outer));
      dft<T, radix, 1>(x, waves);
      if (inner) {
        const T *twiddles = pass.twiddles + 2 * inner * (radix - 1);
        UNROLL for (int j = 1; j < radix; j++) x[j] = rotated<T>(x[j], twiddles[2 * j - 2], twiddles[2 * j - 1]);
      }
      UNROLL for (int j = 0; j < radix; j++) out.store(inner + inners * (outer + outers * j), x[j]);
    }
}

// A pass of any odd radix, with a workspace of as many numbers.
template <class T>
__attribute__((noinline)) void run_long_pass(const Pass<T> &pass, Parts<T> in, Parts<T> out, Complex<T> *workspace) {
  const int64_t radix = pass.radix, half = (radix - 1) / 2;
  Complex<T> *sum = workspace, *difference = workspace + half;
  for (int64_t outer = 0; outer < pass.outer; outer++)
    for (int64_t inner = 0; inner < pass.inner; inner++) {
      const T *twiddles = pass.twiddles + 2 * inner * (radix - 1);
      const Complex<T> first = in.load(inner + pass.inner * radix * outer);
      Complex<T> total = first;
      for (int64_t m = 0; m < half; m++) {
        const Complex<T> a = in.load(inner + pass.inner * (m + 1 + radix * outer));
        const Complex<T> b = in.load(inner + pass.inner * (radix - 1 - m + radix * outer));
        sum[m] = {a.re + b.re, a.im + b.im}, difference[m] = {a.re - b.re, a.im - b.im};
        total.re += sum[m].re, total.im += sum[m].im;
      }
      out.store(inner + pass.inner * outer, total);
      for (int64_t k = 1; k <= half; k++) {
        Complex<T> even = first, odd = {};
        for (int64_t m = 0, at = k; m < half; m++, at = at + k < radix ? at + k : at + k - radix) {
          const T cosine = pass.waves[2 * at], sine = pass.waves[2 * at + 1];
          even.re += sum[m].re * cosine, even.im += sum[m].im * cosine;
          odd.re += difference[m].re * sine, odd.im += difference[m].im * sine;
        }
        Complex<T> a = {even.re + odd.im, even.im - odd.re}, b = {even.re - odd.im, even.im + odd.re};
        a = rotated<T>(a, twiddles[2 * k - 2], twiddles[2 * k - 1]);
        b = rotated<T>(b, twiddles[2 * (radix - k) - 2], twiddles[2 * (radix - k) - 1]);
        out.store(inner + pass.inner * (outer + pass.outer * k), a);
        out.store(inner + pass.inner * (outer + pass.outer * (radix - k)), b);
      }
    }
}

template <class T> class Fourier {
  Pass<T> passes[64];
  int count = 0;

  static int64_t next_factor(int64_t n, int64_t rest) {
    if (n <= LONGEST) return n;
    for (int64_t factor = 8; factor >= 2; factor--)
      if (factor != 6 && rest % factor == 0) return factor;
    for (int64_t factor = 11; factor * factor <= rest; factor += 2)
      if (rest % factor == 0) return factor;
    return rest;
  }

 public:
  int64_t length = 0;

  const T *waves() const { return passes[0].waves; }

  // The number of entries in the tables of a transform, and the size of its workspace in complex vectors.
  static int64_t table_size(int64_t n) {
    int64_t size = 0;
    for (int64_t rest = n, factor; rest > 1; rest /= factor) {
      factor = next_factor(n, rest);
      size += 2 * factor + 2 * rest;
    }
    return size;
  }
  static int64_t workspace_size(int64_t n) { return 3 * n; }

  T *prepare(int64_t n, T *table) {
    length = n;
    count = 0;
    for (int64_t outer = 1, rest = n, factor; rest > 1; rest /= factor, outer *= factor) {
      factor = next_factor(n, rest);
      const int64_t inner = rest / factor;
      T *waves = table, *twiddles = table + 2 * factor;
      fill_waves(waves, factor);
      for (int64_t i = 0; i < inner; i++)
        for (int64_t j = 1; j < factor; j++) {
          const double angle = 6.283185307179586476925286766559 * (double)(i * j * outer % n) / (double)n;
          twiddles[2 * (i * (factor - 1) + j - 1)] = (T)cos(angle);
          twiddles[2 * (i * (factor - 1) + j - 1) + 1] = (T)sin(angle);
        }
      table += 2 * factor + 2 * rest;
      passes[count++] = {factor, inner, outer, waves, twiddles};
    }
    return table;
  }

  // Transforms `in` to `out`, which may be the same; several transforms, at a distance from each other.
  template <bool inverse>
  void run(const Complex<T> *in, Complex<T> *out, Complex<T> *workspace, int64_t several = 1,
           int64_t distance = 0) const {
    if (length <= LONGEST) return whole({in, inverse}, {out, inverse}, several, distance);
    for (; several--; in += distance, out += distance) {
      const Complex<T> *from = in;
      for (int index = 0; index < count; index++) {
        Complex<T> *to = index == count - 1 ? out : workspace + (index % 2) * length;
        one(passes[index], {from, inverse && from == in}, {to, inverse && to == out}, workspace + 2 * length);
        from = to;
      }
    }
  }

 private:
  __attribute__((noinline)) void whole(Parts<T> in, Parts<T> out, int64_t several, int64_t distance) const {
    const T *waves = passes[0].waves;
    switch (length) {
      case 1: return run_whole<T, 1>(in, out, waves, several, distance);
      case 2: return run_whole<T, 2>(in, out, waves, several, distance);
      case 3: return run_whole<T, 3>(in, out, waves, several, distance);
      case 4: return run_whole<T, 4>(in, out, waves, several, distance);
      case 5: return run_whole<T, 5>(in, out, waves, several, distance);
      case 6: return run_whole<T, 6>(in, out, waves, several, distance);
      case 7: return run_whole<T, 7>(in, out, waves, several, distance);
      case 8: return run_whole<T, 8>(in, out, waves, several, distance);
      case 9: return run_whole<T, 9>(in, out, waves, several, distance);
      case 10: return run_whole<T, 10>(in, out, waves, several, distance);
      case 11: return run_whole<T, 11>(in, out, waves, several, distance);
      case 12: return run_whole<T, 12>(in, out, waves, several, distance);
      case 13: return run_whole<T, 13>(in, out, waves, several, distance);
      case 14: return run_whole<T, 14>(in, out, waves, several, distance);
      case 15: return run_whole<T, 15>(in, out, waves, several, distance);
      case 16: return run_whole<T, 16>(in, out, waves, several, distance);
    }
  }

  static __attribute__((noinline)) void one(const Pass<T> &pass, Parts<T> in, Parts<T> out, Complex<T> *workspace) {
    switch (pass.radix) {
      case 2: return run_pass<T, 2>(pass, in, out);
      case 3: return run_pass<T, 3>(pass, in, out);
      case 4: return run_pass<T, 4>(pass, in, out);
      case 5: return run_pass<T, 5>(pass, in, out);
      case 7: return run_pass<T, 7>(pass, in, out);
      case 8: return run_pass<T, 8>(pass, in, out);
      default: return run_long_pass(pass, in, out, workspace);
    }
  }
};

}  // namespace
