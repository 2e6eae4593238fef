// What the operating system and the processor are asked for, and nothing else of this library asks.
#pragma once

namespace fusebert {

#if defined(__x86_64__)
// Whether the machine multiplies tiles of bytes and of bf16 (AMX), and the system lets this process do so. It has to be
// asked, since tiles make a thread's state 8 KB larger; every thread that is started later has its leave.
bool permit_tiles();
#elif defined(__aarch64__)
struct ArmFeatures {
  bool dot, i8mm, bf16;
};
ArmFeatures arm_features();
#endif

}  // namespace fusebert
