// Runs the kernels on problems of many shapes, in memory that is exactly as large as it has to be, for the sanitizers.
// BYTES, the size of a vector, is given by the compiler's command line.
#define ENTRY(name) checked_##name
#include "kernels.h"

#include <cstdio>
#include <cstdlib>
#include <vector>

static int64_t next(void *queue) { return (*(int64_t *)queue)++; }

template <class T> static std::vector<T> numbers(int64_t count) {
  std::vector<T> values(count);
  for (T &value : values) value = (T)rand() / (T)RAND_MAX - T(.5);
  return values;
}

static void work(const void *task) {
  void *workspace = aligned_alloc(64, (checked_workspace(task) + 63) / 64 * 64);
  int64_t queue = 0;
  checked_work(task, workspace, next, &queue);
  free(workspace);
}

template <class T> static bool finite(std::initializer_list<const std::vector<T> *> results) {
  for (const auto *values : results)
    for (T value : *values)
      if (!(value - value == 0)) return false;
  return true;
}

template <class T> static bool check(Filters task) {
  const int64_t channels = task.heads * task.channels, positions = task.height * task.width;
  auto signal = numbers<T>(task.batch * positions * channels), upstream = signal;
  auto bank = numbers<T>(channels * task.filters * task.filter_height * task.filter_width);
  auto atoms = numbers<T>(task.batch * task.heads * positions * task.atoms);
  for (T &atom : atoms) atom += T(1);
  std::vector<T> bound(task.bounds * channels, T(positions)), result(signal.size()), grad_signal(signal.size());
  std::vector<T> grad_bank(task.chunks * bank.size()), grad_atoms(atoms.size());
  const int64_t codes = task.batch * (task.filters * positions + task.atoms) * channels;
  auto target = numbers<T>(codes);
  std::vector<T> solution(codes);
  std::vector<uint8_t> support(codes);
  for (uint8_t &each : support) each = rand() % 8 == 0;
  std::vector<T> power(channels * task.height * (task.width / 2 + 1)), eigenvalue(task.batch * channels);
  task.signal = signal.data(), task.bank = bank.data(), task.dictionary = atoms.data(), task.bound = bound.data();
  task.precise = sizeof(T) == 8;
  for (int kind = 0; kind < 5; kind++) {  // forward, backward, the power of the filters, the bound, a system
    Filters run = task;
    run.kind = kind < 2 ? FILTERS : kind < 4 ? BOUND : SYSTEM;
    run.reconstruction = kind == 0 ? result.data() : nullptr;
    if (kind == 1)
      run.upstream = upstream.data(), run.grad_signal = grad_signal.data(), run.grad_bank = grad_bank.data(),
      run.grad_dictionary = grad_atoms.data();
    if (kind == 2) run.power = power.data(), run.batch = 0, run.steps = 0, run.atoms = 0, run.chunks = 1;
    if (kind == 3) run.eigenvalue = eigenvalue.data();
    if (kind == 4)
      run.target = target.data(), run.support = support.data(), run.solution = solution.data(), run.iterations = 5;
    if (kind != 3 || task.atoms) work(&run);
  }
  return finite<T>({&result, &grad_signal, &grad_bank, &grad_atoms, &power, &eigenvalue, &solution});
}

template <class T> static bool check(Atoms task) {
  const int64_t pairs = task.batch * task.heads, channels = task.heads * task.channels;
  const int64_t rows = task.reads ? task.reads : task.positions;
  auto signal = numbers<T>(task.batch * task.positions * channels), upstream = numbers<T>(task.batch * rows * channels);
  auto atoms = numbers<T>(pairs * task.positions * task.atoms), reader = numbers<T>(pairs * task.reads * task.atoms);
  for (T &atom : atoms) atom += T(1);
  std::vector<T> step(pairs * task.step_sizes, T(.01)), found(pairs * task.atoms), grad_step(step.size());
  std::vector<T> result(upstream.size()), grad_signal(signal.size()), grad_atoms(atoms.size());
  std::vector<T> grad_reader(reader.size());
  task.signal = signal.data(), task.dictionary = atoms.data(), task.precise = sizeof(T) == 8;
  task.reader = task.reads ? reader.data() : nullptr, task.step_size = step.data();
  task.reconstruction = result.data(), task.found = found.data();
  auto keys = numbers<T>(task.batch * task.positions * task.heads * task.width), grad_keys = keys;
  auto queries = numbers<T>(task.batch * task.reads * task.heads * task.width), grad_queries = queries;
  auto prototypes = numbers<T>(task.heads * task.width * task.atoms);
  std::vector<T> grad_prototypes(task.chunks * prototypes.size()), grad_reader_prototypes(grad_prototypes.size());
  if (task.width) {
    task.keys = keys.data(), task.queries = task.reads ? queries.data() : nullptr;
    task.prototypes = task.reader_prototypes = prototypes.data(), task.dictionary = task.reader = nullptr;
  }
  work(&task);
  if (!task.step_sizes) task.step_sizes = task.totals ? task.atoms : 1, task.step_size = found.data();
  task.upstream = upstream.data(), task.grad_signal = grad_signal.data(), task.grad_dictionary = grad_atoms.data();
  task.grad_reader = grad_reader.data(), task.grad_step_size = task.step_sizes > 1 ? grad_step.data() : nullptr;
  grad_step.resize(pairs * task.step_sizes);
  if (task.grad_step_size) task.grad_step_size = grad_step.data();
  if (task.width) {
    task.grad_keys = grad_keys.data(), task.grad_prototypes = grad_prototypes.data();
    task.grad_queries = grad_queries.data();
    task.grad_reader_prototypes = task.reads ? grad_reader_prototypes.data() : nullptr;
  }
  work(&task);
  return finite<T>({&result, &grad_signal, &grad_atoms, &grad_reader, &grad_step, &grad_keys, &grad_queries,
                    &grad_prototypes, &grad_reader_prototypes});
}

template <class T> static bool check(Features task) {
  const int64_t channels = task.heads * task.channels, size = task.batch * task.heads * task.positions * task.atoms;
  auto queries = numbers<T>(task.batch * task.positions * channels), directions = numbers<T>(channels * task.atoms);
  auto upstream = numbers<T>(size);
  std::vector<T> features(size), grad_queries(queries.size()), grad_directions(task.chunks * directions.size());
  task.queries = queries.data(), task.directions = directions.data(), task.features = features.data();
  task.precise = sizeof(T) == 8;
  work(&task);
  task.upstream = upstream.data(), task.grad_queries = grad_queries.data();
  task.grad_directions = task.shares ? grad_directions.data() : nullptr;
  work(&task);
  return finite<T>({&features, &grad_queries, &grad_directions});
}

template <class Task> static void run(const Task &task, int64_t *count) {
  if (!check<float>(task) || !check<double>(task)) printf("not finite: kind %d\n", (int)task.kind), exit(1);
  ++*count;
}

int main() {
  const int64_t sides[] = {1, 2, 5, 14, 17, 22, 28};
  int64_t count = 0;
  for (int64_t height : sides)
    for (int64_t width : sides) {
      Filters task = {};
      task.kind = FILTERS;
      task.heads = 1 + count % 2, task.channels = 1 + count % 19, task.batch = 1 + count % 3;
      task.height = height, task.width = width, task.filters = 1 + count % 2;
      task.filter_height = 1 + count % height, task.filter_width = 1 + count % width;
      task.atoms = count % 3 ? count % 23 : 0, task.steps = 1 + count % 3, task.start = count % 4;
      task.bounds = count % 2 ? task.batch : 1, task.chunks = 1 + count % task.batch, task.strength = .1;
      run(task, &count);
    }
  const int64_t positions[] = {1, 7, 127, 128, 129, 300}, atoms[] = {1, 2, 15, 16, 33, 64};
  for (int64_t rows : positions)
    for (int64_t columns : atoms) {
      Atoms task = {};
      task.kind = ATOMS;
      task.heads = 1 + count % 2, task.channels = 1 + count % 35, task.batch = 1 + count % 3, task.positions = rows;
      task.atoms = columns, task.reads = count % 2 ? 1 + count % 140 : 0, task.steps = 1 + count % 3;
      task.start = count % 4, task.totals = count % 3 == 0, task.strength = .1;
      task.step_sizes = count % 3 == 1 ? (count % 2 ? 1 : columns) : 0;
      task.chunks = 1 + count % task.batch, task.width = task.totals ? count % 21 : 0;
      run(task, &count);
      Features features = {};
      features.kind = FEATURES;
      features.heads = task.heads, features.channels = task.channels, features.batch = task.batch;
      features.positions = rows, features.atoms = columns, features.shares = count % 2;
      features.chunks = 1 + count % task.batch, features.scale = .5;
      run(features, &count);
    }
  printf("%d shapes\n", (int)count);
  return 0;
}
