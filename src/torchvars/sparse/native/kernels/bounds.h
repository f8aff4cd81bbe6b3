// Upper bounds on the eigenvalues of Gram matrices G (count, count), as in sparse/bounds.py.
#pragma once
#include "products.h"

namespace {

template <class T> struct Precision;
template <> struct Precision<float> {
  static constexpr float epsilon = 1.1920928955078125e-7f, tiny = 1.17549435e-38f;
};
template <> struct Precision<double> {
  static constexpr double epsilon = 2.220446049250313e-16, tiny = 2.2250738585072014e-308;
};

template <class T> INLINE T rounded_up(T bound, int64_t terms) {
  const T least = root(Precision<T>::tiny), found = bound * (1 + 4 * (T)terms * Precision<T>::epsilon);
  return found < least ? least : found;
}

// Bound for a matrix without negative entries, by a few matrix-vector products. `direction` and `image` are workspaces
// of `width` vectors.
template <class T>
T perron_eigenvalue(const Vector<T> *gram, int64_t count, Vector<T> *direction, Vector<T> *image) {
  constexpr T tiny = Precision<T>::tiny;
  constexpr int64_t lanes = Lanes<T>::count;
  const int64_t width = vectors_of<T>(count);
  for (int64_t i = 0; i < width; i++) image[i] = Vector<T>{};
  for (int64_t r = 0; r < count; r++)
    for (int64_t i = 0; i < width; i++) image[i] += gram[r * width + i];
  Vector<T> top = image[0];
  for (int64_t i = 1; i < width; i++) top = larger<T>(image[i], top);
  const T most = largest<T>(top), least = root(tiny), scale = 1 / (most < least ? least : most);
  for (int iteration = 0; iteration < 8; iteration++) {
    for (int64_t i = 0; i < width; i++) direction[i] = image[i] * scale;
    multiply<T>((const T *)direction, 1, count, gram, image, width);
  }
  T bound = 0;
  for (int64_t i = 0; i < count; i++) {
    const T down = direction[i / lanes][i % lanes];
    const T ratio = image[i / lanes][i % lanes] / (down < tiny ? tiny : down);
    if (!(ratio <= bound)) bound = ratio;
  }
  return rounded_up<T>(bound, count);
}

template <class T> INLINE T frobenius(const Vector<T> *matrix, int64_t size) {
  Vector<T> sum[4] = {};
  int64_t i = 0;
  for (; i + 4 <= size; i += 4)
    UNROLL for (int j = 0; j < 4; j++) sum[j] += matrix[i + j] * matrix[i + j];
  for (; i < size; i++) sum[0] += matrix[i] * matrix[i];
  const T norm = root(total<T>(sum[0] + sum[1] + sum[2] + sum[3]));
  return norm < Precision<T>::tiny ? Precision<T>::tiny : norm;
}

// Bound for any matrix, within (1 + slack) of its largest eigenvalue, by repeated squaring. The matrix is overwritten;
// `other` is a workspace of the same size.
template <class T> T largest_eigenvalue(Vector<T> *matrix, Vector<T> *other, int64_t count, double slack) {
  const int64_t width = vectors_of<T>(count), size = count * width;
  const double needed = log((double)count) / (2 * log1p(slack));
  const int doublings = needed > 1 ? (int)ceil(log2(needed)) : 0;
  T norm = frobenius<T>(matrix, size), share = 1;
  double logarithm = log((double)norm);
  for (int doubling = 0; doubling < doublings; doubling++) {
    for (int64_t i = 0; i < size; i++) matrix[i] *= 1 / norm;  // normalised, so that no power overflows
    multiply<T>((const T *)matrix, count, count, matrix, other, width, width * Lanes<T>::count);
    Vector<T> *swap = matrix;
    matrix = other, other = swap;
    norm = frobenius<T>(matrix, size), share /= 2, logarithm += share * log((double)norm);
  }
  return rounded_up<T>((T)exp(logarithm), count);
}

}  // namespace
