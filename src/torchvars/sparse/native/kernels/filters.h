// ISTA with a convolution, alone or with a dense dictionary, and the gradient of the reconstruction.
//
//     c_i = (y - e_{i-1}) / L,   u_i = S(u_{i-1} + P^T c_i, strength / L),   e_i = P u_i        e_T is the result
//
// The codes u of filters, their updates c (the causes) and the signals e that they explain are stored as half spectra,
// where P and P^T are products. Only the threshold is applied in space. The data of one block of channels of one image
// stays in the cache from the first step to the last; the backward pass computes it again instead of reading it.
// docs/performance.md derives the gradient.
#pragma once
#include "bank.h"

namespace {

template <class T> class FilterIsta : FilterBank<T> {
  USING_FILTER_BANK;

  struct Masks {  // nonzero entries of two rows of a code
    Mask re, im;
  };

  // The backward pass needs the causes, codes and masks of every step. Otherwise those of the last step are enough.
  struct Block : Part {
    V bound, step, amount;  // L, 1 / L and the threshold strength / L
    C *signal, *explained, *causes, *codes;
    Masks *masks;
    C *grad_kernel, *grad_code, *grad_signal, *gradient;
    V *grad_power;
  };

  bool backward, thresholded;
  Block *blocks;
  C *column;
  // The dense part, (positions or atoms, blocks): one vector for each block.
  V *dense_signal, *dense_map, *dense_causes, *dense_codes, *dense_gradient, *grad_dense_code, *code_by_channel;
  V *grad_atoms;
  int64_t atom_vectors;

 public:
  using Bank::items;

  FilterIsta(const Filters &given, Workspace &workspace) : Bank(given, workspace) {
    backward = task.upstream != nullptr, thresholded = task.start == THRESHOLDED;
    column = workspace.take<C>(torus.stride);
    blocks = workspace.take<Block>(width);
    const int64_t kept = backward ? task.steps : 1, pairs = (task.height + 1) / 2 * task.width;
    const int64_t codes = backward ? kept + 1 : kept;
    for (int64_t index = 0; index < width; index++) {
      Block block = {};
      block.signal = workspace.take<C>(size), block.explained = workspace.take<C>(size);
      block.causes = workspace.take<C>(codes * size), block.codes = workspace.take<C>(codes * task.filters * size);
      if (backward) {
        block.masks = workspace.take<Masks>((kept + 1) * task.filters * pairs);
        block.grad_kernel = workspace.take<C>(task.filters * size);
        block.grad_code = workspace.take<C>(task.filters * size);
        block.grad_signal = workspace.take<C>(size), block.gradient = workspace.take<C>(size);
        block.grad_power = workspace.take<V>(size);
      }
      if (blocks) blocks[index] = block;
    }
    atom_vectors = vectors_of<T>(task.atoms);
    if (dense) {
      dense_signal = workspace.take<V>(positions * width), dense_map = workspace.take<V>(positions * width);
      dense_causes = workspace.take<V>(kept * positions * width);
      dense_codes = workspace.take<V>(codes * task.atoms * width);
      if (backward) {
        dense_gradient = workspace.take<V>(positions * width), grad_dense_code = workspace.take<V>(task.atoms * width);
        code_by_channel = workspace.take<V>(width * lanes * atom_vectors);
        grad_atoms = workspace.take<V>(positions * atom_vectors);
      }
    }
  }

  void run(int64_t item) {
    const int64_t group = item / task.chunks, chunk = item % task.chunks;
    const int64_t first = task.batch * chunk / task.chunks, end = task.batch * (chunk + 1) / task.chunks;
    this->transform_filters(group);
    for (int64_t index = 0; index < width; index++) {
      Block &block = blocks[index];
      (Part &)block = parts[index];
      if (!backward) continue;
      memset(block.grad_kernel, 0, sizeof(C) * task.filters * size);
      memset(block.grad_power, 0, sizeof(V) * size);
    }
    for (int64_t image = first; image < end; image++) {
      forward(image, group);
      if (backward) differentiate(image, group);
    }
    if (backward) store_filter_gradient(chunk);
  }

 private:
  void store_filter_gradient(int64_t chunk) {
    const int64_t numbers = task.heads * task.channels * task.filters * task.filter_height * task.filter_width;
    const T scale = T(positions);  // both factors were divided by this, and only one should be
    for (int64_t index = 0; index < width; index++) {
      const Block &block = blocks[index];
      for (int64_t f = 0; f < task.filters; f++) {
        C *gradient = block.grad_kernel + f * size;
        const C *kernel = block.kernel + f * size;
        for (int64_t i = 0; i < size; i++) gradient[i] = gradient[i] + kernel[i] * block.grad_power[i];
        torus.invert(gradient, scratch, [&](int64_t row, const C *pair) {
          for (int second = 0; second < 2; second++) {
            const int64_t at = this->filter_row(row + second);
            if (at < 0) continue;
            T *to = (T *)task.grad_bank + chunk * numbers + this->filter_start(block, 0, f, at);
            const int64_t stride = this->filter_start(block, 1, f, at) - this->filter_start(block, 0, f, at);
            int64_t x = this->filter_column();
            for (int64_t i = 0; i < task.filter_width; i++, x = x + 1 < task.width ? x + 1 : 0) {
              T values[lanes];
              memcpy(values, second ? &pair[x].im : &pair[x].re, sizeof(V));
              for (int64_t lane = 0; lane < block.count; lane++) to[lane * stride + i] = scale * values[lane];
            }
          }
        });
      }
    }
  }

  INLINE void shrink_dense(V *code, bool whole_strength) const {
    for (int64_t index = 0; index < width; index++) {
      const V amount = whole_strength ? all(T(task.strength)) : blocks[index].amount;
      for (int64_t m = 0; m < task.atoms; m++) code[m * width + index] = soft<T>(code[m * width + index], amount);
    }
  }

  // Codes. In the forward pass every step overwrites those of the step before.

  INLINE C *code(const Block &block, int64_t step, int64_t f) const {
    return block.codes + ((backward ? step : 0) * task.filters + f) * size;
  }
  INLINE C *cause(const Block &block, int64_t step) const { return block.causes + (backward ? step : 0) * size; }
  INLINE Masks *masks(const Block &block, int64_t step, int64_t f) const {
    return block.masks + (step * task.filters + f) * ((task.height + 1) / 2 * task.width);
  }
  INLINE V *dense_code(int64_t step) const { return dense_codes + (backward ? step : 0) * task.atoms * width; }
  INLINE V *dense_cause(int64_t step) const { return dense_causes + (backward ? step - 1 : 0) * positions * width; }

  // The factor c of a start c P^T y; not for THRESHOLDED.
  INLINE V start_factor(const Block &block) const {
    return task.start == SCALED ? block.step : all(T(task.start == ANALYSIS));
  }

  // Columns of the code `before` (zero if null) plus the correlation of the filter with `cause`.
  __attribute__((noinline)) void correlate(const C *before, const C *kernel, const C *cause, C *spectrum) const {
    const int64_t height = torus.height;
    for (int64_t k = 0; k < torus.half; k++, kernel += torus.stride, cause += torus.stride, spectrum += torus.stride) {
      if (before) {
        for (int64_t h = 0; h < height; h++) column[h] = before[h] + conjugate_times<T>(kernel[h], cause[h]);
        before += torus.stride;
      } else {
        for (int64_t h = 0; h < height; h++) column[h] = conjugate_times<T>(kernel[h], cause[h]);
      }
      torus.along_columns.template run<true>(column, spectrum, scratch);
    }
  }

  // Transforms the columns of a code to its spectrum, and stores or, if `add`, adds the signal that it explains.
  __attribute__((noinline)) void explain(C *spectrum, const C *kernel, bool add, C *explained) const {
    const int64_t height = torus.height;
    for (int64_t k = 0; k < torus.half;
         k++, kernel += torus.stride, explained += torus.stride, spectrum += torus.stride) {
      torus.along_columns.template run<false>(spectrum, spectrum, scratch);
      if (add)
        for (int64_t h = 0; h < height; h++) explained[h] = explained[h] + times<T>(kernel[h], spectrum[h]);
      else
        for (int64_t h = 0; h < height; h++) explained[h] = times<T>(kernel[h], spectrum[h]);
    }
  }

  // Codes of all filters after a step, S(before + P^T cause, amount), and the signal that they explain.
  void shrink(const Block &block, int64_t image, int64_t step, V amount, bool continued) const {
    for (int64_t f = 0; f < task.filters; f++) {
      const C *kernel = block.kernel + f * size;
      C *spectrum = code(block, step, f);
      correlate(continued ? code(block, step - 1, f) : nullptr, kernel, cause(block, step), spectrum);
      if (Masks *mask = backward ? masks(block, step, f) : nullptr)
        torus.change_map(spectrum, scratch, [=](int64_t at, C x) {
          x = {soft<T>(x.re, amount), soft<T>(x.im, amount)};
          mask[at] = {__builtin_convertvector(x.re != V{}, Mask), __builtin_convertvector(x.im != V{}, Mask)};
          return x;
        });
      else
        torus.change_map(spectrum, scratch,
                         [=](int64_t, C x) { return C{soft<T>(x.re, amount), soft<T>(x.im, amount)}; });
      explain(spectrum, kernel, f > 0, block.explained);
      prefetch(block, image, step * task.filters + f, (task.steps + 1) * task.filters);
    }
  }

  // Prefetches a part of the signal of the next image and of the result of this one. Their addresses are far apart, so
  // that the processor would wait for them.
  INLINE void prefetch(const Block &block, int64_t image, int64_t part, int64_t parts) const {
    const int64_t stride = task.heads * task.channels;
    const T *next = (const T *)task.signal + this->position(block, image + 1, 0);
    const T *to = (const T *)(backward ? task.grad_signal : task.reconstruction) + this->position(block, image, 0);
    const bool more = image + 1 < task.batch;
    for (int64_t n = positions * part / parts; n < positions * (part + 1) / parts; n++) {
      if (more) __builtin_prefetch(next + n * stride);
      __builtin_prefetch(to + n * stride, 1);
    }
  }

  // Forward

  void forward(int64_t image, int64_t group) {
    for (int64_t index = 0; index < width; index++) begin(blocks[index], image, index);
    if (dense) begin_dense(image, group);
    for (int64_t step = 1; step <= task.steps; step++) {
      for (int64_t index = 0; index < width; index++) {
        const Block &block = blocks[index];
        if (dense) {  // the signal that the atoms explain
          const C *more = cause(block, step);
          this->transform_map(dense_map, index, cause(block, step));
          this->each_frequency([&](int64_t i) { block.explained[i] = block.explained[i] + more[i]; });
        }
        C *cause = this->cause(block, step);
        this->each_frequency([&](int64_t i) { cause[i] = (block.signal[i] - block.explained[i]) * block.step; });
        if (dense) {
          memcpy(block.explained, cause, sizeof(C) * size);
          this->invert_map(block.explained, index, dense_cause(step));
        }
        const bool first = step == 1 && !thresholded;
        if (first) {  // the start is P^T of a multiple of the signal, and needs no transform of its own
          const V start = start_factor(block);
          this->each_frequency([&](int64_t i) { cause[i] = cause[i] + block.signal[i] * start; });
        }
        shrink(block, image, step, block.amount, !first);
      }
      if (dense) step_dense(image, group, step);
    }
    if (!backward)
      for (int64_t index = 0; index < width; index++) {
        const Block &block = blocks[index];
        torus.invert(block.explained, scratch, [&](int64_t row, const C *pair) {
          this->store_rows(task.reconstruction, block, image, row, pair,
                     [&](int64_t n, V x) { return dense ? x + dense_map[n * width + index] : x; });
        });
      }
  }

  void begin(Block &block, int64_t image, int64_t index) {
    const int64_t channels = task.heads * task.channels;
    const T *bound = (const T *)task.bound + (task.bounds > 1 ? image : 0) * channels + block.channel;
    block.bound = all(T(1));
    for (int64_t lane = 0; lane < block.count; lane++) block.bound[lane] = bound[lane];
    block.step = T(1) / block.bound, block.amount = T(task.strength) * block.step;
    torus.transform(block.signal, scratch, [&](int64_t row, C *pair) {
      this->load_rows(task.signal, block, image, row, pair);
      if (dense)
        for (int64_t x = 0; x < task.width; x++) {
          dense_signal[(row * task.width + x) * width + index] = pair[x].re;
          if (row + 1 < task.height) dense_signal[((row + 1) * task.width + x) * width + index] = pair[x].im;
        }
    });
    if (thresholded) {
      memcpy(cause(block, 0), block.signal, sizeof(C) * size);
      shrink(block, image, 0, all(T(task.strength)), false);
    } else {
      const V start = start_factor(block);
      this->each_frequency([&](int64_t i) { block.explained[i] = block.signal[i] * (start * block.power[i]); });
    }
  }

  void begin_dense(int64_t image, int64_t head) {
    V *code = dense_code(0);
    multiply_transposed<T>(this->atoms(image, head), task.atoms, positions, dense_signal, code, width);
    if (thresholded)
      shrink_dense(code, true);
    else
      for (int64_t index = 0; index < width; index++) {
        const V start = start_factor(blocks[index]);
        for (int64_t m = 0; m < task.atoms; m++) code[m * width + index] *= start;
      }
    multiply<T>(this->atoms(image, head), positions, task.atoms, code, dense_map, width);
  }

  void step_dense(int64_t image, int64_t head, int64_t step) {
    V *code = dense_code(step);
    const V *before = dense_code(step - 1);
    if (code != before) memcpy(code, before, sizeof(V) * task.atoms * width);
    multiply_transposed<T, true>(this->atoms(image, head), task.atoms, positions, dense_cause(step), code, width);
    shrink_dense(code, false);
    multiply<T>(this->atoms(image, head), positions, task.atoms, code, dense_map, width);
  }

  // Backward

  // Adds g v^T to the gradient of the atoms, for maps g and codes v.
  void add_atom_gradient(const V *map, const V *code) {
    transpose<T>(code, task.atoms, width * lanes, width, code_by_channel);
    multiply<T, true>((const T *)map, positions, width * lanes, code_by_channel, grad_atoms, atom_vectors);
  }

  // Backward of e = P u: the gradients of u and of the filters from that of e. The former is stored, or added if `add`.
  __attribute__((noinline)) void synthesize_backward(const Block &block, int64_t step, bool add) const {
    for (int64_t f = 0; f < task.filters; f++) {
      const C *kernel = block.kernel + f * size, *spectrum = code(block, step, f), *gradient = block.gradient;
      C *grad_code = block.grad_code + f * size, *grad_kernel = block.grad_kernel + f * size;
      this->each_frequency([&](int64_t i) {
        const C received = conjugate_times<T>(kernel[i], gradient[i]);
        grad_code[i] = add ? grad_code[i] + received : received;
        grad_kernel[i] = grad_kernel[i] + conjugate_times<T>(spectrum[i], gradient[i]);
      });
    }
  }

  // Backward of u + P^T c for one filter, c the cause: transforms the columns of the gradient g of the result to its
  // spectrum, adds to the gradient of the filter, and stores or adds P g, the gradient of c.
  __attribute__((noinline)) void explain_gradient(C *grad_code, const C *kernel, const C *cause, bool add, C *explained,
                                                  C *grad_kernel) const {
    for (int64_t k = 0; k < torus.half; k++) {
      C *at = grad_code + k * torus.stride;
      torus.along_columns.template run<false>(at, at, scratch);
      for (int64_t h = 0; h < torus.height; h++) {
        const int64_t i = k * torus.stride + h;
        const C product = times<T>(kernel[i], at[h]);
        explained[i] = add ? explained[i] + product : product;
        grad_kernel[i] = grad_kernel[i] + conjugate_times<T>(at[h], cause[i]);
      }
    }
  }

  // Backward of a threshold: `grad_code` becomes the gradient g of its argument, and `explained` becomes P g.
  void shrink_backward(const Block &block, int64_t step) const {
    for (int64_t f = 0; f < task.filters; f++) {
      C *grad_code = block.grad_code + f * size;
      const Masks *mask = masks(block, step, f);
      torus.template columns<true>(grad_code, scratch);
      torus.change_map(grad_code, scratch, [=](int64_t at, C x) {
        return C{masked(x.re, mask[at].re), masked(x.im, mask[at].im)};
      });
      explain_gradient(grad_code, block.kernel + f * size, cause(block, step), f > 0, block.explained,
                       block.grad_kernel + f * size);
    }
  }

  static INLINE V masked(V x, Mask mask) {
    typedef decltype(x != x) Whole;
    return __builtin_convertvector(mask, Whole) ? x : V{};
  }

  void differentiate(int64_t image, int64_t group) {
    for (int64_t index = 0; index < width; index++) {
      const Block &block = blocks[index];
      torus.transform(block.gradient, scratch, [&](int64_t row, C *pair) {
        this->load_rows(task.upstream, block, image, row, pair);
        if (dense)
          for (int64_t x = 0; x < task.width; x++) {
            dense_gradient[(row * task.width + x) * width + index] = pair[x].re;
            if (row + 1 < task.height) dense_gradient[((row + 1) * task.width + x) * width + index] = pair[x].im;
          }
      });
      synthesize_backward(block, task.steps, false);
      memset(block.grad_signal, 0, sizeof(C) * size);
    }
    if (dense) {
      memset(grad_atoms, 0, sizeof(V) * positions * atom_vectors);
      add_atom_gradient(dense_gradient, dense_code(task.steps));
      multiply_transposed<T>(this->atoms(image, group), task.atoms, positions, dense_gradient, grad_dense_code, width);
    }
    for (int64_t step = task.steps; step >= 1; step--) {
      if (dense) {  // sets dense_map to P g for the gradient g of the dense code
        keep_support(grad_dense_code, dense_code(step));
        add_atom_gradient(dense_cause(step), grad_dense_code);
        multiply<T>(this->atoms(image, group), positions, task.atoms, grad_dense_code, dense_map, width);
      }
      for (int64_t index = 0; index < width; index++) {
        const Block &block = blocks[index];
        const V start = start_factor(block);
        const bool first = step == 1 && !thresholded;
        shrink_backward(block, step);
        if (first)  // the start is c P^T y
          this->each_frequency(
              [&](int64_t i) { block.grad_signal[i] = block.grad_signal[i] + block.explained[i] * start; });
        if (dense) {
          this->transform_map(dense_map, index, block.gradient);
          this->each_frequency([&](int64_t i) { block.explained[i] = block.explained[i] + block.gradient[i]; });
        }
        this->each_frequency([&](int64_t i) {  // c = (y - e) / L
          const C grad_residual = block.explained[i] * block.step;
          block.grad_signal[i] = block.grad_signal[i] + grad_residual;
          block.gradient[i] = grad_residual * all(T(-1));
        });
        if (dense) {
          memcpy(block.explained, block.gradient, sizeof(C) * size);
          this->invert_map(block.explained, index, dense_gradient);
        }
        if (!first)
          synthesize_backward(block, step - 1, true);
        else
          this->each_frequency([&](int64_t i) {  // e_0 = (sum_f k_f k_f^T) c y
            const C origin = block.signal[i] * start, gradient = block.gradient[i];
            block.grad_power[i] += T(2) * (origin.re * gradient.re + origin.im * gradient.im);
            block.grad_signal[i] = block.grad_signal[i] + gradient * (start * block.power[i]);
          });
      }
      if (dense) {
        add_atom_gradient(dense_gradient, dense_code(step - 1));
        multiply_transposed<T, true>(this->atoms(image, group), task.atoms, positions, dense_gradient, grad_dense_code,
                                     width);
      }
    }
    if (thresholded)
      for (int64_t index = 0; index < width; index++) {
        const Block &block = blocks[index];
        shrink_backward(block, 0);
        this->each_frequency([&](int64_t i) { block.grad_signal[i] = block.grad_signal[i] + block.explained[i]; });
      }
    if (dense) {  // the start
      if (thresholded)
        keep_support(grad_dense_code, dense_code(0));
      else
        for (int64_t index = 0; index < width; index++) {
          const V start = start_factor(blocks[index]);
          for (int64_t m = 0; m < task.atoms; m++) grad_dense_code[m * width + index] *= start;
        }
      add_atom_gradient(dense_signal, grad_dense_code);
      multiply<T>(this->atoms(image, group), positions, task.atoms, grad_dense_code, dense_map, width);
      store_atom_gradient((T *)task.grad_dictionary + (image * task.heads + group) * positions * task.atoms);
    }
    for (int64_t index = 0; index < width; index++) {
      const Block &block = blocks[index];
      torus.invert(block.grad_signal, scratch, [&](int64_t row, const C *pair) {
        this->store_rows(task.grad_signal, block, image, row, pair,
                   [&](int64_t n, V x) { return dense ? x + dense_map[n * width + index] : x; });
      });
    }
  }

  void keep_support(V *gradient, const V *code) const {
    for (int64_t i = 0; i < task.atoms * width; i++) gradient[i] = code[i] != V{} ? gradient[i] : V{};
  }

  void store_atom_gradient(T *to) const {
    for (int64_t n = 0; n < positions; n++)
      memcpy(to + n * task.atoms, grad_atoms + n * atom_vectors, sizeof(T) * task.atoms);
  }
};

}  // namespace
