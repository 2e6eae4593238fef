// The one exception of the core: the caller's mistake, told in a sentence. The border turns it into FB_INVALID.
#pragma once
#include <cstdio>
#include <stdexcept>
#include <string>

namespace fusebert {

class Invalid : public std::runtime_error {
 public:
  template <class... Args>
  explicit Invalid(const char* format, Args... args) : std::runtime_error(text(format, args...)) {}

 private:
  template <class... Args>
  static std::string text(const char* format, Args... args) {
    char buffer[512];
    if constexpr (sizeof...(args) == 0)
      return format;
    else
      std::snprintf(buffer, sizeof buffer, format, args...);
    return buffer;
  }
};

}  // namespace fusebert
