// A caller's arrays: checked, and read as floats whatever their type.
#pragma once
#include <string>

#include "fusebert.h"

namespace fusebert {

// A copy of the struct. Throws Invalid unless it has data, a known type, positive sizes, and scales where needed.
fb_matrix checked(const fb_matrix* matrix, const std::string& name);
// Reads some rows as floats, one after the other without gaps; kReadRows at a time where they are many, since floats of
// so many rows of a matrix that lies transposed are one line of memory.
constexpr int64_t kReadRows = 16;
void read_rows(const fb_matrix& matrix, int64_t first, int64_t count, float* to);
// Throws Invalid at a value that is not finite.
void check_finite(const float* values, int64_t count, const std::string& name);

// A linear with its weight at hand.
struct Linear : fb_linear {
  Linear(const fb_linear* linear, const std::string& name);
  fb_matrix matrix;
};

}  // namespace fusebert
