// The C interface: chooses the instruction set that the processor has, and shares the work out among threads.
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include <atomic>

#include "task.h"

#define DECLARE(set)                    \
  int64_t set##_items(const void *task); \
  int64_t set##_room(const void *task);  \
  void set##_work(const void *task, void *memory, int64_t (*next)(void *), void *queue);

DECLARE(baseline)
#if defined(__x86_64__)
DECLARE(avx2)
DECLARE(avx512)
#endif

namespace {

struct Set {
  const char *name;
  int64_t (*items)(const void *);
  int64_t (*room)(const void *);
  void (*work)(const void *, void *, int64_t (*)(void *), void *);
};

#define SET(set) {#set, set##_items, set##_room, set##_work}

const Set *best() {
  static const Set sets[] = {
#if defined(__x86_64__)
      SET(avx512), SET(avx2),
#endif
      SET(baseline)};
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw");
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const char *wanted = getenv("TORCHVARS_NATIVE");  // a lesser one, for tests
  const bool no_avx512 = wanted && (!strcmp(wanted, "avx2") || !strcmp(wanted, "baseline"));
  const bool no_avx2 = wanted && !strcmp(wanted, "baseline");
  if (avx512 && avx2 && !no_avx512) return &sets[0];
  if (avx2 && !no_avx2) return &sets[1];
  return &sets[2];
#else
  return &sets[0];
#endif
}

const Set &chosen() {
  static const Set *set = best();
  return *set;
}

struct Job {
  const void *task;
  char *memory;
  int64_t room;
  std::atomic<int64_t> item{0}, worker{0};
};

int64_t next(void *job) { return ((Job *)job)->item.fetch_add(1, std::memory_order_relaxed); }

void work(void *given) {
  Job &job = *(Job *)given;
  chosen().work(job.task, job.memory + job.worker.fetch_add(1) * job.room, next, given);
}

void *work_in_thread(void *job) {
  work(job);
  return nullptr;
}

}  // namespace

#define EXPORT __attribute__((visibility("default")))

extern "C" {

EXPORT const char *torchvars_instruction_set() { return chosen().name; }

// The sizes of the tasks, by which the caller sees that both mean the same ones.
EXPORT int64_t torchvars_layout() { return (sizeof(Filters) * 10000 + sizeof(Atoms)) * 10000 + sizeof(Features); }

// Into how many pieces the work falls that threads can do by themselves. A task is one of those of task.h.
EXPORT int64_t torchvars_items(const void *task) { return chosen().items(task); }

// Bytes that each thread works in.
EXPORT int64_t torchvars_room(const void *task) { return chosen().room(task); }

// Does the task with so many threads, each with its room in `memory`. `parallel` is GOMP_parallel of the OpenMP that
// PyTorch has loaded: its threads are there already, and may still be waiting on the processors for work. Without it
// threads are started.
EXPORT void torchvars_run(const void *task, void *memory, int64_t threads,
                   void (*parallel)(void (*)(void *), void *, unsigned, unsigned)) {
  Job job{task, (char *)memory, chosen().room(task)};
  if (threads <= 1) {
    work(&job);
  } else if (parallel) {
    parallel(work, &job, (unsigned)threads, 0);
  } else {
    const int64_t most = 256;
    pthread_t others[most];
    int64_t started = 0;
    while (started < threads - 1 && started < most && !pthread_create(&others[started], nullptr, work_in_thread, &job))
      started++;
    work(&job);
    for (int64_t i = 0; i < started; i++) pthread_join(others[i], nullptr);
  }
}
}
