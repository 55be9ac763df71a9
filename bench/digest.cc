// The digest of a tensor beside a plain read of the same bytes, in turns, in one thread.
//
//     cmake -S . -B build/cost -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DWEIGHTCAST_INSTALL=OFF
//     cmake --build build/cost --target digest_bench
//     build/cost/tests/digest_bench [MiB] [turns]
#include "digest/digest.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#include "digest/constants.h"

namespace weightcast::digest {
namespace {

volatile uint64_t g_result;  ///< What was computed goes here, or the compiler would drop it.

double SecondsOf(const std::function<uint64_t()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  g_result = work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

/// The sum of all 64-bit words, four vectors of 32 bytes at a time. `prefetch`: fetches so many bytes ahead;
/// 0: does not.
#if defined(__x86_64__)
__attribute__((target_clones("avx2", "default")))
#endif
uint64_t
PlainRead(const std::byte* data, size_t bytes, size_t prefetch) {
  typedef uint64_t Words __attribute__((vector_size(32)));
  Words sums[4] = {};
  for (size_t at = 0; at + sizeof(sums) <= bytes; at += sizeof(sums)) {
    const uintptr_t ahead = reinterpret_cast<uintptr_t>(data) + at + prefetch;
    if (prefetch > 0) __builtin_prefetch(reinterpret_cast<void*>(ahead));
    if (prefetch > 0) __builtin_prefetch(reinterpret_cast<void*>(ahead + 64));
    for (size_t i = 0; i < 4; ++i) {
      Words words;
      std::memcpy(&words, data + at + i * sizeof(Words), sizeof(Words));
      sums[i] += words;
    }
  }
  const Words sum = sums[0] + sums[1] + sums[2] + sums[3];
  return sum[0] + sum[1] + sum[2] + sum[3];
}

struct Case {
  const char* name;
  std::function<uint64_t()> work;
};

uint64_t Fold(const Result<TensorDigest>& digest) {
  if (!digest.ok()) std::abort();
  return digest->high ^ digest->low;
}

void Run(size_t mib, int turns) {
  constexpr int64_t kColumns = 4096;
  std::vector<std::byte> data(mib << 20);
  for (size_t i = 0; i < data.size() / 8; ++i) {
    const uint64_t word = Random(2, i);
    std::memcpy(data.data() + i * 8, &word, 8);
  }
  const auto key = [&](DType dtype) {
    const int64_t rows = static_cast<int64_t>(data.size()) * 8 / BitsOf(dtype) / kColumns;
    return TensorKey::Of(
               {.name = "model.layers.0.mlp.up_proj.weight", .dtype = dtype, .shape = {rows, kColumns}})
        .value();
  };
  const TensorKey bf16 = key(DType::kBF16);
  const TensorKey f32 = key(DType::kF32);
  const TensorKey f8 = key(DType::kF8E4M3);
  const auto whole = [&](const TensorKey& of) {
    return Fold(of.DigestOf(WholeOf(of.tensor().shape), data.data()));
  };
  // The buffer holds some columns of a tensor of as many columns, and more rows: a rank's share of a row.
  const auto columns_of = [&](const TensorKey& of, int64_t parts) {
    TensorInfo wide = of.tensor();
    wide.shape[0] *= parts;
    return Fold(TensorKey::Of(wide).value().DigestOf(
        {{0, kColumns / parts}, {wide.shape[0], kColumns / parts}}, data.data()));
  };
  const auto portable = [&] {
    Dots dots{};
    for (size_t at = 0; at < data.size(); at += kBlockBytes)
      AddDotsPortable(data.data() + at, 0, kBlockLanes, dots);
    return static_cast<uint64_t>(dots[0]);
  };
  const std::vector<Case> cases = {
      {"plain read again", [&] { return PlainRead(data.data(), data.size(), 0); }},
      {"plain read, prefetched", [&] { return PlainRead(data.data(), data.size(), 2048); }},
      {"BF16, whole", [&] { return whole(bf16); }},
      {"F32, whole", [&] { return whole(f32); }},
      {"F8_E4M3, whole", [&] { return whole(f8); }},
      {"BF16, 1 of 2 columns", [&] { return columns_of(bf16, 2); }},
      {"BF16, 1 of 4 columns", [&] { return columns_of(bf16, 4); }},
      {"BF16, 1 of 8 columns", [&] { return columns_of(bf16, 8); }},
      {"portable dots", portable}};
  std::printf("%-22s %10s %10s %8s\n", "", "read GB/s", "GB/s", "ratio");
  for (const Case& one : cases) {
    std::vector<double> reads;
    std::vector<double> works;
    std::vector<double> ratios;
    for (int turn = 0; turn < turns; ++turn) {
      reads.push_back(SecondsOf([&] { return PlainRead(data.data(), data.size(), 0); }));
      works.push_back(SecondsOf(one.work));
      ratios.push_back(reads.back() / works.back());
    }
    const auto speed = [&](double seconds) { return static_cast<double>(data.size()) / seconds / 1e9; };
    std::printf("%-22s %10.1f %10.1f %8.2f\n", one.name, speed(Median(reads)), speed(Median(works)),
                Median(ratios));
  }
}

}  // namespace
}  // namespace weightcast::digest

int main(int argc, char** argv) {
  weightcast::digest::Run(argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 512,
                          argc > 2 ? std::atoi(argv[2]) : 15);
}
