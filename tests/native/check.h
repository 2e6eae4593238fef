// Counts what holds and what does not; `where` says under which circumstances.
#pragma once
#include <cstdio>
#include <string>

inline int checks = 0, failures = 0;
inline std::string where;
#define CHECK(condition)                                                             \
  do {                                                                               \
    ++checks;                                                                        \
    if (!(condition)) {                                                              \
      ++failures;                                                                    \
      std::printf("%s:%d [%s] %s\n", __FILE__, __LINE__, where.c_str(), #condition); \
    }                                                                                \
  } while (0)

// The exit code of a test.
inline int verdict() {
  std::printf("%d checks, %d failed\n", checks, failures);
  return failures != 0;
}
