// Runs the kernels on problems of many shapes, in memory that is exactly as large as it has to be, for the sanitizers.
// BYTES, the size of a vector, is given by the compiler's command line.
#define ENTRY(name) checked_##name
#include "ista.h"

#include <cstdio>
#include <cstdlib>
#include <vector>

static int64_t next(void *queue) { return (*(int64_t *)queue)++; }

template <class T> static std::vector<T> numbers(int64_t count) {
  std::vector<T> values(count);
  for (T &value : values) value = (T)rand() / (T)RAND_MAX - T(.5);
  return values;
}

template <class T> static bool check(Task task) {
  const int64_t channels = task.heads * task.channels, positions = task.height * task.width;
  auto signal = numbers<T>(task.batch * positions * channels), upstream = signal;
  auto bank = numbers<T>(channels * task.filters * task.filter_height * task.filter_width);
  auto atoms = numbers<T>(task.batch * task.heads * positions * task.atoms);
  std::vector<T> bound(task.bounds * channels, T(positions)), result(signal.size()), of_signal(signal.size());
  std::vector<T> of_bank(task.chunks * bank.size()), of_atoms(atoms.size());
  std::vector<T> power(channels * task.height * (task.width / 2 + 1));
  task.signal = signal.data(), task.bank = bank.data(), task.dictionary = atoms.data(), task.bound = bound.data();
  task.precise = sizeof(T) == 8;
  for (int kind = 0; kind < 3; kind++) {  // forward, backward, the power of the filters
    Task run = task;
    run.reconstruction = kind == 0 ? result.data() : nullptr;
    if (kind == 1)
      run.upstream = upstream.data(), run.of_signal = of_signal.data(), run.of_bank = of_bank.data(),
      run.of_dictionary = of_atoms.data();
    if (kind == 2) run.power = power.data(), run.batch = 0, run.steps = 0, run.atoms = 0, run.chunks = 1;
    void *room = aligned_alloc(64, (checked_room(run) + 63) / 64 * 64);
    int64_t queue = 0;
    checked_work(run, room, next, &queue);
    free(room);
  }
  for (const auto *values : {&result, &of_signal, &of_bank, &of_atoms, &power})
    for (T value : *values)
      if (!(value - value == 0)) return false;
  return true;
}

int main() {
  const int64_t sides[] = {1, 2, 5, 14, 17, 22, 28};
  int64_t count = 0;
  for (int64_t height : sides)
    for (int64_t width : sides) {
      Task task = {};
      task.heads = 1 + count % 2, task.channels = 1 + count % 19, task.batch = 1 + count % 3;
      task.height = height, task.width = width, task.filters = 1 + count % 2;
      task.filter_height = 1 + count % height, task.filter_width = 1 + count % width;
      task.atoms = count % 3 ? count % 23 : 0, task.steps = 1 + count % 3, task.start = count % 4;
      task.bounds = count % 2 ? task.batch : 1, task.chunks = 1 + count % task.batch, task.strength = .1;
      if (!check<float>(task) || !check<double>(task)) return printf("not finite: %d\n", (int)count), 1;
      count++;
    }
  printf("%d shapes\n", (int)count);
  return 0;
}
