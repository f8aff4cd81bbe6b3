// Atoms computed from queries q, and the gradients of q and W:
//
//     exp(s q W - s^2 |q|^2 / 2), columns of unit length      softmax(q W), rows that sum to one
//
// Let a be the atoms and g their gradient. Since columns have unit length, the gradient of the logarithm is
// (g - a sum_n g a) a. For a softmax the sum is over the row: (g - sum_m g a) a.
#pragma once
#include "products.h"
#include "task.h"

namespace {

// The softmax of `count` rows of `size` numbers, in place. Unused lanes of the last vector become zero.
template <class T> void softmax(Vector<T> *rows, int64_t count, int64_t size) {
  typedef Vector<T> V;
  constexpr int64_t lanes = Lanes<T>::count;
  const int64_t across = vectors_of<T>(size);
  for (V *row = rows; row < rows + count * across; row += across) {
    for (int64_t lane = size; lane < across * lanes; lane++) row[across - 1][lane % lanes] = -(T)INFINITY;
    V top = row[0], sum = {};
    for (int64_t i = 1; i < across; i++) top = larger<T>(row[i], top);
    const T most = largest<T>(top);
    for (int64_t i = 0; i < across; i++) row[i] = exponential<T>(row[i] - most), sum += row[i];
    const T part = T(1) / total<T>(sum);
    for (int64_t i = 0; i < across; i++) row[i] *= part;
  }
}

// Replaces a row of a softmax by the gradient of the logits, given the gradient of the row.
template <class T> INLINE void softmax_backward(Vector<T> *row, const Vector<T> *gradient, int64_t across) {
  Vector<T> sum = {};
  for (int64_t i = 0; i < across; i++) sum += gradient[i] * row[i];
  const T along = total<T>(sum);
  for (int64_t i = 0; i < across; i++) row[i] *= gradient[i] - along;
}

template <class T> class FeatureMap {
  typedef Vector<T> V;
  static constexpr int64_t lanes = Lanes<T>::count;

  const Features &task;
  int64_t across, wide;  // number of vectors that hold the atoms, and the channels of a head
  bool backward;
  T scale;
  V *directions, *atoms, *sums;
  V *transposed = nullptr, *grad_queries = nullptr, *grad_directions = nullptr;  // backward

 public:
  FeatureMap(const Features &given, Workspace &workspace) : task(given) {
    across = vectors_of<T>(task.atoms), wide = vectors_of<T>(task.channels);
    backward = task.upstream != nullptr, scale = (T)task.scale;
    directions = workspace.take<V>(task.channels * across), atoms = workspace.take<V>(task.positions * across);
    sums = workspace.take<V>(2 * across);
    if (backward) {
      transposed = workspace.take<V>(task.atoms * wide), grad_queries = workspace.take<V>(task.positions * wide);
      grad_directions = workspace.take<V>(task.channels * across);
    }
  }

  static int64_t items(const Features &task) { return task.heads * task.chunks; }

  void run(int64_t item) {
    const int64_t head = item / task.chunks, chunk = item % task.chunks;
    const int64_t first = task.batch * chunk / task.chunks, end = task.batch * (chunk + 1) / task.chunks;
    const T *from = (const T *)task.directions + head * task.channels * task.atoms;
    for (int64_t c = 0; c < task.channels; c++) load_row(from + c * task.atoms, task.atoms, directions + c * across);
    for (int64_t i = 0; i < task.channels * across; i++) directions[i] *= scale;
    if (backward) {
      transpose<T>(directions, task.channels, task.atoms, across, transposed);
      memset(grad_directions, 0, sizeof(V) * task.channels * across);
    }
    for (int64_t image = first; image < end; image++) backward ? differentiate(image, head) : forward(image, head);
    if (backward && task.grad_directions)
      for (int64_t c = 0; c < task.channels; c++)
        store_row((T *)task.grad_directions + ((chunk * task.heads + head) * task.channels + c) * task.atoms,
                  grad_directions + c * across, task.atoms);
  }

 private:
  int64_t stride() const { return task.heads * task.channels; }
  const T *queries(int64_t image, int64_t head) const {
    return (const T *)task.queries + image * task.positions * stride() + head * task.channels;
  }
  int64_t start(int64_t image, int64_t head) const {
    return (image * task.heads + head) * task.positions * task.atoms;
  }

  void forward(int64_t image, int64_t head) {
    const T *query = queries(image, head);
    multiply_all<T, false>({query, stride(), 1}, task.positions, task.channels, directions, atoms, across);
    task.shares ? softmax<T>(atoms, task.positions, task.atoms) : make_unit(query);
    T *to = (T *)task.features + start(image, head);
    for (int64_t n = 0; n < task.positions; n++) store_row(to + n * task.atoms, atoms + n * across, task.atoms);
  }

  void make_unit(const T *query) {
    V *top = sums, *square = sums + across;
    for (int64_t n = 0; n < task.positions; n++, query += stride()) {
      V norm = {};
      for (int64_t c = 0; c < task.channels; c += lanes) {
        const V x = load<T>(query + c, task.channels - c);
        norm += x * x;
      }
      const T half = scale * scale / 2 * total<T>(norm);
      V *row = atoms + n * across;
      for (int64_t i = 0; i < across; i++) {
        row[i] -= half;
        top[i] = n ? larger<T>(row[i], top[i]) : row[i];
      }
    }
    memset(square, 0, sizeof(V) * across);
    for (int64_t n = 0; n < task.positions; n++)  // a shift of a column cancels; this one prevents overflow
      for (int64_t i = 0; i < across; i++) {
        V &x = atoms[n * across + i];
        x = exponential<T>(x - top[i]), square[i] += x * x;
      }
    for (int64_t i = 0; i < across; i++) square[i] = T(1) / roots<T>(square[i]);
    for (int64_t n = 0; n < task.positions; n++)
      for (int64_t i = 0; i < across; i++) atoms[n * across + i] *= square[i];
  }

  // Replaces `atoms` by the gradient of their logarithm.
  void differentiate(int64_t image, int64_t head) {
    const T *query = queries(image, head);
    const T *given = (const T *)task.features + start(image, head);
    const T *upstream = (const T *)task.upstream + start(image, head);
    for (int64_t n = 0; n < task.positions; n++) load_row(given + n * task.atoms, task.atoms, atoms + n * across);
    V *along = sums, *gradient = sums + across;
    memset(along, 0, sizeof(V) * across);
    if (!task.shares)
      for (int64_t n = 0; n < task.positions; n++)
        for (int64_t i = 0; i < across; i++)
          along[i] += load<T>(upstream + n * task.atoms + i * lanes, task.atoms - i * lanes) * atoms[n * across + i];
    for (int64_t n = 0; n < task.positions; n++) {
      V *row = atoms + n * across;
      load_row(upstream + n * task.atoms, task.atoms, gradient);
      V sum = {};
      if (task.shares) {
        softmax_backward<T>(row, gradient, across);
      } else {
        for (int64_t i = 0; i < across; i++) row[i] = (gradient[i] - row[i] * along[i]) * row[i], sum += row[i];
        const T square = scale * scale * total<T>(sum);
        for (int64_t i = 0; i < wide; i++)
          grad_queries[n * wide + i] =
              load<T>(query + n * stride() + i * lanes, task.channels - i * lanes) * -square;
      }
    }
    const Numbers<T> rows = {(const T *)atoms, across * lanes, 1};
    if (task.shares)
      multiply_all<T, false>(rows, task.positions, task.atoms, transposed, grad_queries, wide);
    else
      multiply_all<T, true>(rows, task.positions, task.atoms, transposed, grad_queries, wide);
    T *to = (T *)task.grad_queries + (query - (const T *)task.queries);
    for (int64_t n = 0; n < task.positions; n++) store_row(to + n * stride(), grad_queries + n * wide, task.channels);
    if (task.grad_directions)
      multiply_long<T, true>({query, 1, stride()}, task.channels, task.positions, atoms, grad_directions, across);
  }
};

}  // namespace
