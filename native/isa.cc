// Chooses the instruction set at run time.
#include <cstdlib>
#include <cstring>
#include <string>

#include "error.h"
#include "kernels.h"
#include "platform.h"

namespace fusebert {

#define FB_DECLARE(isa)       \
  namespace isa {             \
  extern const Kernels table; \
  }
#if defined(__x86_64__)
FB_DECLARE(amx)
FB_DECLARE(avx512_bf16)
FB_DECLARE(avx512_vnni)
FB_DECLARE(avx512)
FB_DECLARE(avx2)
#elif defined(__aarch64__)
FB_DECLARE(neon_bf16)
FB_DECLARE(neon_i8mm)
FB_DECLARE(neon_dot)
#endif
FB_DECLARE(plain)

namespace {

struct Candidate {
  const Kernels* table;
  bool supported;
};

const Candidate* candidates() {
#if defined(__x86_64__)
  static const Features has = features();
  static const Candidate list[] = {{&amx::table, has.bf16 && permit_tiles()},
                                   {&avx512_bf16::table, has.bf16},
                                   {&avx512_vnni::table, has.vnni},
                                   {&avx512::table, has.avx512},
                                   {&avx2::table, has.avx2},
                                   {&plain::table, true},
                                   {nullptr, false}};
#elif defined(__aarch64__)
  static const Features has = features();
  static const Candidate list[] = {{&neon_bf16::table, has.dot && has.i8mm && has.bf16},
                                   {&neon_i8mm::table, has.dot && has.i8mm},
                                   {&neon_dot::table, has.dot},
                                   {&plain::table, true},
                                   {nullptr, false}};
#else
  static const Candidate list[] = {{&plain::table, true}, {nullptr, false}};
#endif
  return list;
}

}  // namespace

const Kernels* supported_kernels(int index) {
  for (const Candidate* c = candidates(); c->table; ++c)
    if (c->supported && index-- == 0) return c->table;
  return nullptr;
}

const Kernels& kernels() {
  const char* wanted = std::getenv("FUSEBERT_ISA");
  if (!wanted || !*wanted) return *supported_kernels(0);
  std::string names;
  for (const Candidate* c = candidates(); c->table; ++c) {
    if (std::strcmp(c->table->name, wanted) == 0) {
      if (!c->supported)
        throw Invalid("FUSEBERT_ISA=%s: this machine has no such instructions; its best is %s", wanted,
                      supported_kernels(0)->name);
      return *c->table;
    }
    names += (names.empty() ? "" : ", ") + std::string(c->table->name);
  }
  throw Invalid("FUSEBERT_ISA=%.40s is unknown; use one of %s", wanted, names.c_str());
}

}  // namespace fusebert
