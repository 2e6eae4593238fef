// What the operating system and the processor are asked for. Nothing else in the core asks them, so a port is a port of
// platform.cc; only Linux was ever tried.
#pragma once
#include <cstdint>
#include <string>

namespace fusebert {

#if defined(__x86_64__)
struct Features {
  bool avx2, avx512, vnni, bf16;  // each with all that its table uses, and only where the system keeps its registers
};
// Whether the machine multiplies tiles of bytes and of bf16 (AMX), and the system lets this process do so. It has to be
// asked, since tiles make a thread's state 8 KB larger; every thread that is started later has its leave.
bool permit_tiles();
#elif defined(__aarch64__)
struct Features {
  bool dot, i8mm, bf16;
};
#else
struct Features {};
#endif
Features features();

// A number that a forked child does not have in common with its parent.
int process_number();

// Cores that this process may really use: affinity mask and cgroup quotas (v1 and v2), at least one. `root` stands in
// for the root of the file system.
int usable_cores(const std::string& root);

// Memory that begins at a cache line, or in large pages where it is large enough; NULL if there is none.
void* take_memory(int64_t bytes);
void give_memory_back(void* p);

}  // namespace fusebert
