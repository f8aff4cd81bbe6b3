// All kernels, for one instruction set: BYTES in a vector, and ENTRY(name) the names of what is called from outside.
#pragma once
#include <type_traits>

#include "atoms.h"
#include "eigenvalues.h"
#include "feature_map.h"
#include "filters.h"
#include "system.h"

namespace {

// Calls `each` with the class that does the task and the task itself.
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

// Into how many pieces the work falls that threads can do by themselves.
int64_t ENTRY(items)(const void *task) {
  int64_t items = 0;
  dispatch(task, [&](auto *kernel, const auto &given) { items = std::remove_pointer_t<decltype(kernel)>::items(given); });
  return items;
}

// Bytes that each thread works in.
int64_t ENTRY(room)(const void *task) {
  Room room(nullptr);
  dispatch(task, [&](auto *kernel, const auto &given) { std::remove_pointer_t<decltype(kernel)>(given, room); });
  return room.used;
}

void ENTRY(work)(const void *task, void *memory, int64_t (*next)(void *), void *queue) {
  dispatch(task, [&](auto *kernel, const auto &given) {
    typedef std::remove_pointer_t<decltype(kernel)> Kernel;
    Room room(memory);
    Kernel run(given, room);
    const int64_t items = Kernel::items(given);
    for (int64_t item; (item = next(queue)) < items;) run.run(item);
  });
}
