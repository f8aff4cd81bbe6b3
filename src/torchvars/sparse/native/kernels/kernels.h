// All kernels, compiled for one instruction set: BYTES is the size of a vector, ENTRY(name) the name of an exported
// function.
#pragma once
#include <type_traits>

#include "atoms.h"
#include "eigenvalues.h"
#include "feature_map.h"
#include "filters.h"
#include "system.h"

namespace {

// Calls `each` with the class of the kernel and with the task.
template <class T, class Each> void with_kernel(const void *task, Each each) {
  switch (*(const int64_t *)task) {
    case FILTERS: return each((FilterIsta<T> *)nullptr, *(const Filters *)task);
    case ATOMS: return each((AtomsIsta<T> *)nullptr, *(const Atoms *)task);
    case FEATURES: return each((FeatureMap<T> *)nullptr, *(const Features *)task);
    case BOUND: return each((FilterBound<T> *)nullptr, *(const Filters *)task);
    case SYSTEM: return each((FilterSystem<T> *)nullptr, *(const Filters *)task);
  }
}

template <class Each> void dispatch(const void *task, Each each) {
  const bool precise = ((const int64_t *)task)[1];
  precise ? with_kernel<double>(task, each) : with_kernel<float>(task, each);
}

}  // namespace

// The number of independent work items, which threads share.
int64_t ENTRY(items)(const void *task) {
  int64_t items = 0;
  dispatch(task, [&](auto *kernel, const auto &given) {
    items = std::remove_pointer_t<decltype(kernel)>::items(given);
  });
  return items;
}

// The size of a thread's workspace, in bytes.
int64_t ENTRY(workspace)(const void *task) {
  Workspace workspace(nullptr);
  dispatch(task, [&](auto *kernel, const auto &given) { std::remove_pointer_t<decltype(kernel)>(given, workspace); });
  return workspace.used;
}

void ENTRY(work)(const void *task, void *memory, int64_t (*next)(void *), void *queue) {
  dispatch(task, [&](auto *kernel, const auto &given) {
    typedef std::remove_pointer_t<decltype(kernel)> Kernel;
    Workspace workspace(memory);
    Kernel run(given, workspace);
    const int64_t items = Kernel::items(given);
    for (int64_t item; (item = next(queue)) < items;) run.run(item);
  });
}
