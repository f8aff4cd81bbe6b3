// Products of a matrix of numbers and a matrix of vectors, in blocks that fit into registers.
#pragma once
#include "fourier.h"

namespace {

constexpr int ROWS = BYTES == 64 ? 12 : 6, COLUMNS = 2;  // of a block

// A matrix s(i, j) of numbers: i is the row of the result, and the sum is over j.
template <class T> struct Numbers {
  const T *data;
  int64_t row, column;  // strides
};

template <class T, int rows, int columns, bool add>
INLINE void multiply_block(Numbers<T> s, int64_t count, const Vector<T> *x, Vector<T> *out, int64_t width) {
  typedef Vector<T> V;
  V sum[rows][columns];
  UNROLL for (int i = 0; i < rows; i++)
    UNROLL for (int c = 0; c < columns; c++) sum[i][c] = add ? out[i * width + c] : V{};
  for (int64_t j = 0; j < count; j++) {
    const T *number = s.data + j * s.column;
    UNROLL for (int i = 0; i < rows; i++)
      UNROLL for (int c = 0; c < columns; c++) sum[i][c] += number[i * s.row] * x[j * width + c];
  }
  UNROLL for (int i = 0; i < rows; i++)
    UNROLL for (int c = 0; c < columns; c++) out[i * width + c] = sum[i][c];
}

template <class T, int columns, bool add>
INLINE void multiply_columns(Numbers<T> s, int64_t rows, int64_t count, const Vector<T> *x, Vector<T> *out,
                             int64_t width) {
  int64_t i = 0;
  for (; i + ROWS <= rows; i += ROWS)
    multiply_block<T, ROWS, columns, add>({s.data + i * s.row, s.row, s.column}, count, x, out + i * width, width);
  for (; i + 4 <= rows; i += 4)
    multiply_block<T, 4, columns, add>({s.data + i * s.row, s.row, s.column}, count, x, out + i * width, width);
  for (; i < rows; i++)
    multiply_block<T, 1, columns, add>({s.data + i * s.row, s.row, s.column}, count, x, out + i * width, width);
}

// out (rows, width) = or += s (rows, count) x (count, width).
template <class T, bool add>
void multiply_all(Numbers<T> s, int64_t rows, int64_t count, const Vector<T> *x, Vector<T> *out, int64_t width) {
  int64_t c = 0;
  for (; c + COLUMNS <= width; c += COLUMNS)
    multiply_columns<T, COLUMNS, add>(s, rows, count, x + c, out + c, width);
  for (; c < width; c++) multiply_columns<T, 1, add>(s, rows, count, x + c, out + c, width);
}

// P u for a row-major P (rows, count). `stride` is the distance between rows, 0 for `count`.
template <class T, bool add = false>
INLINE void multiply(const T *p, int64_t rows, int64_t count, const Vector<T> *u, Vector<T> *out, int64_t width,
                     int64_t stride = 0) {
  multiply_all<T, add>({p, stride ? stride : count, 1}, rows, count, u, out, width);
}

// out = or += s x, for sums of many terms: as many at a time as fit into the cache.
template <class T, bool add = false>
void multiply_long(Numbers<T> s, int64_t rows, int64_t count, const Vector<T> *x, Vector<T> *out, int64_t width) {
  const int64_t most = 128;
  for (int64_t first = 0; first < count; first += most) {
    const int64_t some = count - first < most ? count - first : most;
    const Numbers<T> part = {s.data + first * s.column, s.row, s.column};
    if (add || first)
      multiply_all<T, true>(part, rows, some, x + first * width, out, width);
    else
      multiply_all<T, false>(part, rows, some, x + first * width, out, width);
  }
}

// P^T x for a row-major P (count, rows).
template <class T, bool add = false>
INLINE void multiply_transposed(const T *p, int64_t rows, int64_t count, const Vector<T> *x, Vector<T> *out,
                                int64_t width) {
  multiply_long<T, add>({p, 1, rows}, rows, count, x, out, width);
}

// The transpose of the numbers (rows, columns) in the vectors x, as vectors: (columns, vectors of rows).
template <class T>
void transpose(const Vector<T> *x, int64_t rows, int64_t columns, int64_t width, Vector<T> *out) {
  constexpr int64_t lanes = Lanes<T>::count;
  const int64_t across = vectors_of<T>(rows);
  const T *numbers = (const T *)x;
  for (int64_t first = 0; first < rows; first += lanes) {
    const int64_t some = rows - first < lanes ? rows - first : lanes;
    for (int64_t c = 0; c < columns; c++) {
      T column[lanes] = {};
      if (some == lanes)
        UNROLL for (int64_t r = 0; r < lanes; r++) column[r] = numbers[(first + r) * width * lanes + c];
      else
        for (int64_t r = 0; r < some; r++) column[r] = numbers[(first + r) * width * lanes + c];
      memcpy(out + c * across + first / lanes, column, sizeof column);
    }
  }
}

}  // namespace
