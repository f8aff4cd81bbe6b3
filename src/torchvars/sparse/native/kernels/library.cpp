// The C interface: selects the instruction set of the processor and distributes the work over threads.
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include <atomic>

#include "task.h"

#define DECLARE(set)                    \
  int64_t set##_items(const void *task); \
  int64_t set##_workspace(const void *task); \
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
  int64_t (*workspace)(const void *);
  void (*work)(const void *, void *, int64_t (*)(void *), void *);
};

#define SET(set) {#set, set##_items, set##_workspace, set##_work}

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
  const char *wanted = getenv("TORCHVARS_NATIVE");  // a lower one, for tests
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
  int64_t workspace;
  std::atomic<int64_t> item{0}, worker{0};
};

int64_t next(void *job) { return ((Job *)job)->item.fetch_add(1, std::memory_order_relaxed); }

void work(void *given) {
  Job &job = *(Job *)given;
  chosen().work(job.task, job.memory + job.worker.fetch_add(1) * job.workspace, next, given);
}

void *work_in_thread(void *job) {
  work(job);
  return nullptr;
}

}  // namespace

#define EXPORT __attribute__((visibility("default")))

extern "C" {

EXPORT const char *torchvars_instruction_set() { return chosen().name; }

// The sizes of the structures of task.h, for the caller to check that its own are the same.
EXPORT int64_t torchvars_layout() { return (sizeof(Filters) * 10000 + sizeof(Atoms)) * 10000 + sizeof(Features); }

// The number of independent work items of a task, a structure of task.h. Threads share the items.
EXPORT int64_t torchvars_items(const void *task) { return chosen().items(task); }

// The size of a thread's workspace, in bytes.
EXPORT int64_t torchvars_workspace(const void *task) { return chosen().workspace(task); }

// Runs a task on several threads, each with its own workspace in `memory`. `parallel` is GOMP_parallel of the OpenMP
// that PyTorch has loaded: its threads are running already, and may still be spinning. If it is null, threads are
// started here.
EXPORT void torchvars_run(const void *task, void *memory, int64_t threads,
                   void (*parallel)(void (*)(void *), void *, unsigned, unsigned)) {
  Job job{task, (char *)memory, chosen().workspace(task)};
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
