// Structs as callers of any version have them: each begins with its size, and fields that a caller does not know are 0.
#pragma once
#include <algorithm>
#include <cstring>
#include <string>

#include "error.h"
#include "fusebert.h"

namespace fusebert {

// A copy of what a caller points to. Throws Invalid where that is nothing.
template <class T>
T sized(const T* given, const std::string& name) {
  if (!given || given->size < sizeof given->size) throw Invalid("%s is missing or has no size", name.c_str());
  T own{};
  std::memcpy(&own, given, std::min<size_t>(given->size, sizeof own));
  return own;
}

// A struct of this version in which nothing is set.
template <class T>
T unset() {
  T own{};
  own.size = sizeof own;
  return own;
}

}  // namespace fusebert
