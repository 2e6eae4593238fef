// What a call of the C ABI says when it fails, as an exception.
#pragma once
#include <new>
#include <stdexcept>

#include "error.h"
#include "fusebert.h"

namespace fusebert {

// Calls f(&error); throws Invalid, bad_alloc or runtime_error where the status is not FB_OK.
template <class F>
void call_core(const F& f) {
  fb_error error{};
  const fb_status status = f(&error);
  if (status == FB_OUT_OF_MEMORY) throw std::bad_alloc();
  if (status == FB_INVALID) throw Invalid("%s", error.message);
  if (status != FB_OK) throw std::runtime_error(error.message);
}

}  // namespace fusebert
