// The ceiling as a library: ceiling.py compiles it for the machine it runs on.
#include "ceiling.h"

extern "C" {
double ceiling_measure(int kind, int threads) { return ceiling::measure(static_cast<ceiling::Kind>(kind), threads); }
const char* ceiling_how(int kind) {
  const char* const hows[] = {ceiling::F32::kHow, ceiling::Bf16::kHow, ceiling::S8::kHow, "reading"};
  return hows[kind];
}
}
