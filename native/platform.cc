#include "platform.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <thread>

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sched.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#endif
#include <unistd.h>

namespace fusebert {

#if defined(__x86_64__)
namespace {

struct Registers {
  unsigned a = 0, b = 0, c = 0, d = 0;
};

Registers ask_processor(unsigned leaf, unsigned part) {
  Registers told;
  if (!__get_cpuid_count(leaf, part, &told.a, &told.b, &told.c, &told.d)) return {};
  return told;
}

bool all(unsigned told, unsigned wanted) { return (told & wanted) == wanted; }

// The registers that the system keeps when it switches threads.
unsigned kept_registers() {
  constexpr unsigned kAskable = 1u << 27;  // OSXSAVE
  if (!all(ask_processor(1, 0).c, kAskable)) return 0;
  unsigned low, high;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

}  // namespace

Features features() {
  constexpr unsigned kVectors = 6, kWideVectors = 0xe0;  // of kept_registers
  constexpr unsigned kFma = 1u << 12, kAvx2 = 1u << 5, kVnni = 1u << 11, kBf16 = 1u << 5;
  constexpr unsigned kAvx512 = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;  // F, DQ, BW, VL
  const Registers base = ask_processor(1, 0), more = ask_processor(7, 0), most = ask_processor(7, 1);
  const bool avx2 = all(kept_registers(), kVectors) && all(base.c, kFma) && all(more.b, kAvx2);
  const bool avx512 = avx2 && all(kept_registers(), kWideVectors) && all(more.b, kAvx512),
             vnni = avx512 && all(more.c, kVnni);
  return {avx2, avx512, vnni, vnni && all(most.a, kBf16)};
}

bool permit_tiles() {
#if defined(FB_EMULATED_TILES)
  return true;
#elif defined(__linux__)
  constexpr unsigned kTiles = 1u << 22 | 1u << 24 | 1u << 25;  // of bf16, at all, of bytes
  constexpr long kRequest = 0x1023, kTileData = 18;            // ARCH_REQ_XCOMP_PERM, and the state's number
  return all(ask_processor(7, 0).d, kTiles) && syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
#else
  return false;
#endif
}
#elif defined(__aarch64__) && defined(__linux__)
Features features() {
  constexpr unsigned long kDot = 1ul << 20, kI8mm = 1ul << 13, kBf16 = 1ul << 14;  // HWCAP_ASIMDDP; HWCAP2_I8MM, _BF16
  const unsigned long first = getauxval(AT_HWCAP), second = getauxval(AT_HWCAP2);
  return {(first & kDot) != 0, (second & kI8mm) != 0, (second & kBf16) != 0};
}
#else
Features features() { return {}; }
#endif

int process_number() { return static_cast<int>(getpid()); }

namespace {

// The quota in cores that one cgroup folder sets, or 0 where it sets none.
double quota_in(const std::string& folder) {
  std::string quota;
  double period = 0;
  if (std::ifstream file(folder + "/cpu.max"); file >> quota >> period && period > 0 && quota != "max")
    return std::strtod(quota.c_str(), nullptr) / period;
  double v1 = 0;
  if (std::ifstream file(folder + "/cpu.cfs_quota_us"); !(file >> v1) || v1 <= 0) return 0;
  if (std::ifstream file(folder + "/cpu.cfs_period_us"); !(file >> period) || period <= 0) return 0;
  return v1 / period;
}

// The smallest quota of a cgroup and all it is inside of. A container often sees its own group at the mount's top.
double smallest_quota(const std::string& mount, std::string group) {
  double smallest = 0;
  for (;; group.erase(std::min(group.size(), group.rfind('/')))) {
    if (const double quota = quota_in(mount + group); quota > 0 && (smallest == 0 || quota < smallest))
      smallest = quota;
    if (group.empty() || group.rfind('/') == std::string::npos) return smallest;
  }
}

double cgroup_quota(const std::string& root) {
  double smallest = 0;
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // hierarchy:controllers:path
    const auto first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1), group = line.substr(second + 1);
    if (!controllers.empty() && ("," + controllers + ",").find(",cpu,") == std::string::npos) continue;
    for (const char* mount : {"/sys/fs/cgroup", "/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct"})
      if (const double quota = smallest_quota(root + mount, group == "/" ? "" : group); quota > 0)
        smallest = smallest == 0 ? quota : std::min(smallest, quota);
  }
  return smallest;
}

// Cores that the process may be scheduled on.
int allowed_cores() {
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
#endif
  return static_cast<int>(std::thread::hardware_concurrency());
}

}  // namespace

int usable_cores(const std::string& root) {
  int cores = allowed_cores();
  if (const double quota = cgroup_quota(root); quota > 0) cores = std::min(cores, static_cast<int>(quota));
  return std::max(cores, 1);
}

void* take_memory(int64_t bytes) {
  constexpr int64_t kLine = 64,
                    kLargePage = int64_t{1} << 21;  // of small pages, weights that are streamed need too many
  const int64_t large = bytes / kLargePage * kLargePage;
  void* p = nullptr;  // not aligned_alloc, whose sizes must be whole multiples of the alignment
  if (posix_memalign(&p, large ? kLargePage : kLine, static_cast<size_t>(std::max(bytes, kLine)))) return nullptr;
#if defined(__linux__)
  if (large) madvise(p, static_cast<size_t>(large), MADV_HUGEPAGE);
#endif
  return p;
}

void give_memory_back(void* p) { std::free(p); }

}  // namespace fusebert
