#include "digest/dots.h"

#include <algorithm>
#include <bit>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace weightcast::digest {
namespace {

static_assert(std::endian::native == std::endian::little, "lanes are read as the processor stores them");

alignas(64) constexpr Table kTable = MakeTable();

constexpr size_t kStepLanes = 16;
/// Sums of 32 bits hold so many steps of whatever lanes: two products a step, each below 2^15 * 2^12.
constexpr size_t kGroupSteps = 8;
constexpr size_t kGroupLanes = kGroupSteps * kStepLanes;
static_assert(int64_t{kGroupSteps} * 2 * 32768 * kMaxTableValue <= INT32_MAX);
static_assert(kStepLanes == kTableStep, "the table's rows of consecutive dot products lie a step apart");

}  // namespace

void AddDotsPortable(const std::byte* data, size_t first, size_t lanes, Dots& dots) {
  const int16_t* table = kTable.data() + first;
  while (lanes > 0) {
    const size_t taken = std::min(lanes, kGroupLanes);
    const size_t steps = (taken + kStepLanes - 1) / kStepLanes;
    std::array<int16_t, kGroupLanes> group;
    std::memset(group.data() + (steps - 1) * kStepLanes, 0, kStepLanes * sizeof(int16_t));
    std::memcpy(group.data(), data, taken * sizeof(int16_t));
    for (size_t dot = 0; dot < kDots; ++dot) {
      std::array<int32_t, kStepLanes> sums{};
      for (size_t step = 0; step < steps; ++step) {
        const int16_t* values = group.data() + step * kStepLanes;
        const int16_t* factors = table + (step + dot) * kStepLanes;
        for (size_t i = 0; i < kStepLanes; ++i) sums[i] += values[i] * factors[i];
      }
      for (const int32_t sum : sums) dots[dot] += sum;
    }
    data += taken * sizeof(int16_t);
    table += taken;
    lanes -= taken;
  }
}

#if defined(__x86_64__)
namespace {

#define WC_AVX2 __attribute__((target("avx2")))

/// Without it gcc adds in another order, which takes more registers than there are.
WC_AVX2 __attribute__((always_inline)) inline void KeepInRegister(__m256i& value) { asm("" : "+x"(value)); }

WC_AVX2 __attribute__((always_inline)) inline __m256i Load(const void* from) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(from));
}

/// Where to fetch from ahead of the sums: the processor's own prefetch ends with each page.
constexpr size_t kPrefetchBytes = 2048;

/// Dot products of several groups. Each sum of 32 bits of a group begins at -2^31, so that, read as unsigned,
/// it is exact; `Total` takes that off again.
struct WideSums {
  __m256i sums[kDots];
  int64_t groups = 0;

  WC_AVX2 __attribute__((always_inline)) void AddGroup(const std::byte* data, const int16_t* table,
                                                       size_t steps) {
    __m256i group[kDots];
#pragma GCC unroll 8
    for (size_t dot = 0; dot < kDots; ++dot) group[dot] = _mm256_set1_epi32(INT32_MIN);
#pragma GCC unroll 8
    for (size_t step = 0; step < steps; ++step) {
      const std::byte* const from = data + step * sizeof(__m256i);
      const __m256i lanes = Load(from);
      // An address, not a pointer: it may lie behind the buffer.
      if (step % 2 == 0)
        __builtin_prefetch(reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(from) + kPrefetchBytes));
#pragma GCC unroll 8
      for (size_t dot = 0; dot < kDots; ++dot) {
        const __m256i products = _mm256_madd_epi16(lanes, Load(table + (step + dot) * kStepLanes));
        group[dot] = _mm256_add_epi32(group[dot], products);
        KeepInRegister(group[dot]);
      }
    }
    const __m256i low = _mm256_set1_epi64x(UINT32_MAX);
#pragma GCC unroll 8
    for (size_t dot = 0; dot < kDots; ++dot) {
      const __m256i pair =
          _mm256_add_epi64(_mm256_and_si256(group[dot], low), _mm256_srli_epi64(group[dot], 32));
      sums[dot] = _mm256_add_epi64(sums[dot], pair);
    }
    ++groups;
  }

  [[nodiscard]] WC_AVX2 __attribute__((always_inline)) int64_t Total(size_t dot) const {
    const __m128i two =
        _mm_add_epi64(_mm256_castsi256_si128(sums[dot]), _mm256_extracti128_si256(sums[dot], 1));
    return _mm_cvtsi128_si64(two) + _mm_extract_epi64(two, 1) - groups * 8 * (int64_t{1} << 31);
  }
};

WC_AVX2 void AddDotsAvx2(const std::byte* data, size_t first, size_t lanes, Dots& dots) {
  const int16_t* table = kTable.data() + first;
  WideSums wide;
#pragma GCC unroll 8
  for (size_t dot = 0; dot < kDots; ++dot) wide.sums[dot] = _mm256_setzero_si256();
  for (; lanes >= kGroupLanes; lanes -= kGroupLanes) {
    wide.AddGroup(data, table, kGroupSteps);
    data += kGroupLanes * sizeof(int16_t);
    table += kGroupLanes;
  }
  if (const size_t steps = lanes / kStepLanes; steps > 0) {
    wide.AddGroup(data, table, steps);
    data += steps * sizeof(__m256i);
    table += steps * kStepLanes;
    lanes -= steps * kStepLanes;
  }
  if (lanes > 0) {
    std::array<int16_t, kStepLanes> last{};
    std::memcpy(last.data(), data, lanes * sizeof(int16_t));
    wide.AddGroup(reinterpret_cast<const std::byte*>(last.data()), table, 1);
  }
#pragma GCC unroll 8
  for (size_t dot = 0; dot < kDots; ++dot) dots[dot] += wide.Total(dot);
}

#define WC_AVX512 __attribute__((target("avx512f,avx512bw,avx512vnni")))

/// The same in vectors of 64 bytes, with multiplication and addition in one instruction. A vector of the
/// table serves three dot products, two lanes of 16 apart: gcc loads it once where the steps are unrolled.
struct WidestSums {
  static constexpr size_t kLanes = sizeof(__m512i) / sizeof(int16_t);
  static constexpr size_t kGroup = kGroupSteps * kLanes;
  static_assert(kLanes == kWidestStep);
  // gcc's own functions for what is done with it warn of their own code.
  typedef uint64_t Words __attribute__((vector_size(sizeof(__m512i))));
  Words sums[kDots] = {};
  int64_t groups = 0;

  WC_AVX512 __attribute__((always_inline)) static __m512i Factors(const int16_t* from) {
    __m512i loaded = _mm512_loadu_si512(from);
    asm volatile("" : "+v"(loaded));
    return loaded;
  }

  /// `last`: which lanes of the last step there are.
  WC_AVX512 __attribute__((always_inline)) void AddGroup(const std::byte* data, const int16_t* table,
                                                         size_t steps, __mmask32 last) {
    // Every second vector of factors serves the next step, too. Volatile: gcc would load each factor again,
    // and fetch from memory in bursts.
    __m512i group[kDots];
    __m512i factors[kDots];
#pragma GCC unroll 8
    for (size_t dot = 0; dot < kDots; ++dot) group[dot] = _mm512_set1_epi32(INT32_MIN);
#pragma GCC unroll 8
    for (size_t dot = 2; dot < kDots; ++dot) factors[dot] = Factors(table + (dot - 2) * kTableStep);
#pragma GCC unroll 8
    for (size_t step = 0; step < steps; ++step) {
      const std::byte* const from = data + step * sizeof(__m512i);
      asm volatile("prefetcht0 %c1(%0)" : : "r"(from), "i"(kPrefetchBytes));
      const __mmask32 present = step + 1 == steps ? last : ~__mmask32{0};
      const __m512i lanes = _mm512_maskz_loadu_epi16(present, from);
#pragma GCC unroll 8
      for (size_t dot = 0; dot < kDots; ++dot) {
        factors[dot] = dot + 2 < kDots ? factors[dot + 2] : Factors(table + step * kLanes + dot * kTableStep);
        group[dot] = _mm512_dpwssd_epi32(group[dot], lanes, factors[dot]);
      }
    }
#pragma GCC unroll 8
    for (size_t dot = 0; dot < kDots; ++dot) {
      const Words words = reinterpret_cast<Words>(group[dot]);
      sums[dot] += (words & UINT32_MAX) + (words >> 32);
    }
    ++groups;
  }
};

WC_AVX512 void AddDotsAvx512(const std::byte* data, size_t first, size_t lanes, Dots& dots) {
  const int16_t* table = kTable.data() + first;
  WidestSums wide;
  for (; lanes >= WidestSums::kGroup; lanes -= WidestSums::kGroup) {
    wide.AddGroup(data, table, kGroupSteps, ~__mmask32{0});
    data += WidestSums::kGroup * sizeof(int16_t);
    table += WidestSums::kGroup;
  }
  if (lanes > 0) {
    const size_t steps = (lanes + WidestSums::kLanes - 1) / WidestSums::kLanes;
    wide.AddGroup(data, table, steps, ~__mmask32{0} >> (steps * WidestSums::kLanes - lanes));
  }
  for (size_t dot = 0; dot < kDots; ++dot) {
    uint64_t sum = 0;
    for (size_t i = 0; i < WidestSums::kLanes / 4; ++i) sum += wide.sums[dot][i];
    dots[dot] += static_cast<int64_t>(sum) - wide.groups * 16 * (int64_t{1} << 31);
  }
}

}  // namespace

DotsFunction FastestAddDots() {
  static const DotsFunction fastest = AllAddDots().back();
  return fastest;
}

std::vector<DotsFunction> AllAddDots() {
  std::vector<DotsFunction> all = {AddDotsPortable};
  if (__builtin_cpu_supports("avx2") != 0) all.push_back(AddDotsAvx2);
  if (__builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
      __builtin_cpu_supports("avx512vnni") != 0)
    all.push_back(AddDotsAvx512);
  return all;
}
#else
DotsFunction FastestAddDots() { return AddDotsPortable; }
std::vector<DotsFunction> AllAddDots() { return {AddDotsPortable}; }
#endif

}  // namespace weightcast::digest
