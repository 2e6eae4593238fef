#include "platform.h"

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace fusebert {

#if defined(__x86_64__)
bool permit_tiles() {
#if defined(FB_EMULATED_TILES)
  return true;
#elif defined(__linux__)
  constexpr unsigned kFeatures = 7, kBf16 = 1u << 22, kTiles = 1u << 24, kInt8 = 1u << 25,
                     kAll = kBf16 | kTiles | kInt8;
  constexpr long kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, and the state's number
  unsigned a, b, c, d;
  return __get_cpuid_count(kFeatures, 0, &a, &b, &c, &d) && (d & kAll) == kAll &&
         syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
#else
  return false;
#endif
}
#elif defined(__aarch64__)
ArmFeatures arm_features() {
#if defined(__linux__)
  constexpr unsigned long kDot = 1ul << 20, kI8mm = 1ul << 13, kBf16 = 1ul << 14;  // HWCAP_ASIMDDP; HWCAP2_I8MM, _BF16
  const unsigned long first = getauxval(AT_HWCAP), second = getauxval(AT_HWCAP2);
  return {(first & kDot) != 0, (second & kI8mm) != 0, (second & kBf16) != 0};
#else
  return {};
#endif
}
#endif

}  // namespace fusebert
