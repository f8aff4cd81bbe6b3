// Vectors of the width of a SIMD register, and elementwise functions on them.
#pragma once
#include <stdint.h>
#include <string.h>

#define INLINE inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

namespace {

template <class T> struct Lanes;
template <> struct Lanes<float> {
  typedef float V __attribute__((vector_size(BYTES)));
  typedef signed char M __attribute__((vector_size(BYTES / 4)));  // of each lane: 0 or -1
  typedef uint32_t Bits __attribute__((vector_size(BYTES)));
  static constexpr int count = BYTES / 4;
};
template <> struct Lanes<double> {
  typedef double V __attribute__((vector_size(BYTES)));
  typedef signed char M __attribute__((vector_size(BYTES / 8)));
  typedef uint64_t Bits __attribute__((vector_size(BYTES)));
  static constexpr int count = BYTES / 8;
};
template <class T> using Vector = typename Lanes<T>::V;

// The number of vectors that hold `count` numbers.
template <class T> INLINE int64_t vectors_of(int64_t count) { return (count + Lanes<T>::count - 1) / Lanes<T>::count; }

// Hands out parts of a block of memory. Without memory it only counts the bytes that are needed.
class Workspace {
  char *base;

 public:
  int64_t used = 0;

  explicit Workspace(void *memory) : base((char *)memory) {}

  template <class U> U *take(int64_t count) {
    U *piece = base ? (U *)(base + used) : nullptr;
    used += (count * (int64_t)sizeof(U) + 63) / 64 * 64;
    return piece;
  }
};

template <class T> INLINE Vector<T> all(T value) { return value - Vector<T>{}; }

template <class T> INLINE Vector<T> smaller(Vector<T> a, Vector<T> b) { return a < b ? a : b; }
template <class T> INLINE Vector<T> larger(Vector<T> a, Vector<T> b) { return a > b ? a : b; }

// The soft threshold S(a, t). NaN stays NaN.
template <class T> INLINE Vector<T> soft(Vector<T> a, Vector<T> t) {
  Vector<T> kept = a > t ? t : a;
  kept = kept < -t ? -t : kept;
  return a - kept;
}

INLINE float root(float x) { return __builtin_sqrtf(x); }
INLINE double root(double x) { return __builtin_sqrt(x); }
template <class T> INLINE Vector<T> roots(Vector<T> x) {
  UNROLL for (int lane = 0; lane < Lanes<T>::count; lane++) x[lane] = root(x[lane]);
  return x;
}

template <class T> INLINE T total(Vector<T> x) {
  T numbers[Lanes<T>::count];
  memcpy(numbers, &x, sizeof x);
  UNROLL for (int half = Lanes<T>::count / 2; half; half /= 2)
    UNROLL for (int i = 0; i < half; i++) numbers[i] += numbers[i + half];
  return numbers[0];
}

template <class T> INLINE T largest(Vector<T> x) {
  T numbers[Lanes<T>::count];
  memcpy(numbers, &x, sizeof x);
  UNROLL for (int half = Lanes<T>::count / 2; half; half /= 2)
    UNROLL for (int i = 0; i < half; i++) numbers[i] = numbers[i + half] > numbers[i] ? numbers[i + half] : numbers[i];
  return numbers[0];
}

// With fewer numbers than lanes, the other lanes are zero.
template <class T> INLINE Vector<T> load(const T *from, int64_t count) {
  Vector<T> x = {};
  if (count >= Lanes<T>::count)
    memcpy(&x, from, sizeof x);
  else
    for (int64_t lane = 0; lane < count; lane++) x[lane] = from[lane];
  return x;
}

template <class T> INLINE void store(T *to, Vector<T> x, int64_t count) {
  if (count >= Lanes<T>::count)
    memcpy(to, &x, sizeof x);
  else
    for (int64_t lane = 0; lane < count; lane++) to[lane] = x[lane];
}

// Rows of numbers as rows of vectors, and back.
template <class T> INLINE void load_row(const T *from, int64_t count, Vector<T> *to) {
  for (; count > 0; count -= Lanes<T>::count, from += Lanes<T>::count) *to++ = load<T>(from, count);
}
template <class T> INLINE void store_row(T *to, const Vector<T> *from, int64_t count) {
  for (; count > 0; count -= Lanes<T>::count, to += Lanes<T>::count) store<T>(to, *from++, count);
}

template <class T> struct Exponential;
template <> struct Exponential<float> {
  static constexpr float shift = 12582912.f, high = .693359375f, low = -2.12194440e-4f, lowest = -87.33654f;
  static constexpr int degree = 7, mantissa = 23;
};
template <> struct Exponential<double> {
  static constexpr double shift = 6755399441055744., high = 6.93147180369123816490e-01, low = 1.90821492927058770002e-10;
  static constexpr double lowest = -708.396;
  static constexpr int degree = 13, mantissa = 52;
};

// exp(x) for x up to 88, as 2^k exp(r) with |r| <= ln(2) / 2 and a Taylor series of exp(r). Zero where it underflows.
template <class T> INLINE Vector<T> exponential(Vector<T> x) {
  typedef Vector<T> V;
  typedef typename Lanes<T>::Bits Bits;
  typedef Exponential<T> E;
  const V kept = x < all(E::lowest) ? all(E::lowest) : x;  // NaN stays NaN
  const V shifted = kept * T(1.44269504088896340736) + E::shift, k = shifted - E::shift;
  const V r = kept - k * E::high - k * E::low;
  double factorial = 1;
  for (int i = 2; i <= E::degree; i++) factorial *= i;
  V sum = all(T(1 / factorial));
  UNROLL for (int i = E::degree; i > 0; i--) {
    factorial /= i;
    sum = sum * r + T(1 / factorial);
  }
  const Bits scaled = (Bits)sum + ((Bits)shifted << E::mantissa);
  return x < all(E::lowest) ? V{} : (V)scaled;
}

}  // namespace
