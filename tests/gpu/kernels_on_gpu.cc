// Runs every kernel of src/kernels on the first GPU and compares it with its host version, bit for bit. Needs
// nothing but the driver. One line for each kernel, with GB/s read and written; ends at the first difference.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "gpu/gpu.h"
#include "gpu/kernel_cases.h"
#include "kernels/convert.h"
#include "kernels/copy_list.h"
#include "kernels/digest.h"
#include "kernels/fill.h"
#include "kernels/gather.h"
#include "kernels/hash.h"
#include "kernels/host_kernels.h"
#include "kernels/ptx.h"
#include "kernels/quantise.h"

// What the static libgcc and libstdc++ want from glibc 2.35 and 2.36, so that 2.34 is enough. Neither is
// called: this program has no exceptions and no random_device.
#define WC_UNUSED extern "C" __attribute__((visibility("hidden")))
WC_UNUSED int _dl_find_object(void*, struct dl_find_object*) noexcept { return -1; }  // NOLINT
WC_UNUSED uint32_t arc4random() noexcept { std::abort(); }                            // NOLINT

namespace {

using namespace weightcast::kernels;  // NOLINT

constexpr uint32_t kCases = 40;
constexpr uint64_t kLarge = uint64_t{1} << 30;  ///< Bytes of each side of a measurement.

struct Text {
  const char* name;
  gpu::Handle module;
};

[[noreturn]] void Fail(const std::string& what) {
  std::printf("FAILED %s\n", what.c_str());
  std::exit(1);
}

/// Calls fn(begin, end) for parts of [0, count) on all processors.
void Parallel(uint64_t count, const std::function<void(uint64_t, uint64_t)>& fn) {
  const uint64_t parts = std::max(1U, std::thread::hardware_concurrency());
  std::vector<std::thread> threads;
  for (uint64_t i = 0; i < parts; ++i) threads.emplace_back(fn, count * i / parts, count * (i + 1) / parts);
  for (auto& thread : threads) thread.join();
}

void ExpectEqual(const uint8_t* host, const uint8_t* device, uint64_t bytes, const std::string& what) {
  std::atomic<uint64_t> first = UINT64_MAX;
  Parallel(bytes, [&](uint64_t begin, uint64_t end) {
    if (std::memcmp(host + begin, device + begin, end - begin) == 0) return;
    while (host[begin] == device[begin]) ++begin;
    uint64_t seen = first;
    while (begin < seen && !first.compare_exchange_weak(seen, begin)) {
    }
  });
  if (first == UINT64_MAX) return;
  char text[200];
  std::snprintf(text, sizeof text, "%s: byte %llu is %02x on the GPU and %02x on the host", what.c_str(),
                static_cast<unsigned long long>(first.load()), device[first], host[first]);
  Fail(text);
}

/// Random launches; the whole memory around them is compared.
void CheckCases(const std::string& kernel, const std::vector<Text>& texts, uint64_t arena, uint8_t* result) {
  for (uint32_t index = 0; index < kCases; ++index) {
    const auto one = kernel_cases::MakeCase(kernel, index);
    auto host = one;
    host.Relocate(reinterpret_cast<uint64_t>(host.arena.data()));
    void* parameter = host.parameter.data();
    FindHostKernel(kernel)->run(host.grid, &parameter);
    for (const size_t at : host.in_arena) std::memcpy(&host.arena[at], &one.arena[at], 8);
    for (const auto& text : texts) {
      auto device = one;
      device.Relocate(arena);
      gpu::Upload(arena, device.arena.data(), kernel_cases::kArena);
      gpu::Launch(gpu::Function(text.module, kernel.c_str()), device.grid.blocks, device.grid.threads,
                  device.parameter.data());
      gpu::Wait();
      gpu::Download(result, arena, kernel_cases::kArena);
      for (const size_t at : one.in_arena) std::memcpy(result + at, &one.arena[at], 8);
      if (std::memcmp(host.arena.data(), result, kernel_cases::kArena) == 0) continue;
      ExpectEqual(host.arena.data(), result, kernel_cases::kArena,
                  kernel + " of " + text.name + ", case " + std::to_string(index));
    }
  }
}

uint64_t Width(const std::string& dtype) {
  return dtype == "f32" ? 4 : dtype == "f16" || dtype == "bf16" ? 2 : std::stoul(dtype);
}

/// One large launch of a kernel.
struct Measurement {
  std::vector<uint8_t> parameter;
  uint64_t bytes = 0;
  Grid grid{132 * 8, 512};

  template <typename P>
  void Set(const P& p, uint64_t moved) {
    parameter.resize(sizeof p);
    std::memcpy(parameter.data(), &p, sizeof p);
    bytes = moved;
  }
};

GatherParameters Rows(uint64_t from, uint64_t to, uint64_t in, uint64_t out, bool group) {
  // Rows of 1,024 elements out of rows of 1,280.
  const uint64_t unit = group ? 8 : 1;
  GatherParameters p{from, to, 0, 0, 2, group ? 1U : 0U, {}, {}};
  std::fill(p.size, p.size + kBoxDims, 1);
  p.size[kBoxDims - 2] = kLarge / (1280 * std::max(in, out));
  p.size[kBoxDims - 1] = 1024 / unit;
  p.stride[kBoxDims - 2] = static_cast<int64_t>(1280 * in);
  p.stride[kBoxDims - 1] = static_cast<int64_t>(unit * in);
  p.count = p.size[kBoxDims - 2] * p.size[kBoxDims - 1];
  return p;
}

DigestParameters OneRow(uint64_t from, uint64_t sums) {
  DigestParameters p{};
  p.source = from;
  p.sums = sums;
  p.row = p.end = kLarge;
  p.apart = 1;
  p.unit = 16;
  p.dims = 1;
  std::fill(p.size, p.size + kBoxDims, 1);
  p.size[kBoxDims - 1] = p.cells = kLarge / kDigestBlock;
  return p;
}

CopyList ManyPieces(uint64_t from, uint64_t to) {
  CopyList list{};
  list.count = kListPieces;
  for (uint32_t i = 0; i < kListPieces; ++i) list.piece[i] = {from + (i << 20), to + (i << 20), 1 << 20};
  return list;
}

Measurement MeasurementOf(const std::string& kernel, uint64_t from, uint64_t to, uint64_t words) {
  Measurement made;
  const size_t last = kernel.rfind('_');
  const std::string end = kernel.substr(last + 1);
  const size_t first = kernel.find('_');
  if (kernel == "copy_list") made.Set(ManyPieces(from, to), 2 * (uint64_t{kListPieces} << 20));
  if (kernel == "copy_pieces") {
    const CopyList list = ManyPieces(from, to);
    gpu::Upload(words, list.piece, sizeof list.piece);
    made.Set(CopyPiecesParameters{words, kListPieces, 0}, 2 * (uint64_t{kListPieces} << 20));
  }
  if (kernel == "fill") made.Set(FillParameters{from, kLarge, 1}, kLarge);
  if (kernel == "compare") made.Set(CompareParameters{from, kLarge, 1, words}, kLarge);
  if (kernel == "digest") {
    made.Set(OneRow(from, words), kLarge);
    made.grid = {1024, 256};  // As the library launches it.
  }
  if (kernel == "hash_leaves") made.Set(HashParameters{from, kLarge, words}, kLarge);
  if (kernel.starts_with("cast_")) {
    const uint64_t in = Width(kernel.substr(first + 1, last - first - 1));
    const uint64_t count = kLarge / 4;
    made.Set(CastParameters{from, to, count}, count * (in + Width(end)));
  }
  if (kernel.starts_with("gather_")) {
    const bool cast = last != first;
    const uint64_t in = Width(cast ? kernel.substr(first + 1, last - first - 1) : end);
    const auto p = Rows(from, to, in, Width(end), cast);
    made.Set(p, p.count * (cast ? 8 : 1) * (in + Width(end)));
  }
  if (kernel.starts_with("quantise_blocks_")) {
    const uint64_t rows = kLarge / 4096 / Width(end);
    made.Set(QuantiseBlocksParameters{from, to, words, rows, 4096, 4096 * Width(end), 4096, 128},
             rows * 4096 * (Width(end) + 1));
  } else if (kernel.starts_with("quantise_")) {
    made.Set(QuantiseParameters{from, to, kLarge / Width(end), words, words + 8},
             kLarge + kLarge / Width(end));
  }
  if (kernel.starts_with("amax_")) made.Set(AmaxParameters{from, kLarge / Width(end), words}, kLarge);
  return made;
}

double Measure(gpu::Handle function, Measurement& one) {
  double best = 1e9;
  for (int i = 0; i < 4; ++i) {
    gpu::Clock clock;
    gpu::Launch(function, one.grid.blocks, one.grid.threads, one.parameter.data());
    best = std::min(best, clock.Stop());
  }
  return static_cast<double>(one.bytes) / best / 1e9;
}

/// All 2^32 values of F32 through the kernels that read F32 and depend on one element only.
void CheckAllF32(const std::vector<Text>& texts) {
  constexpr uint64_t kPart = uint64_t{1} << 26;
  constexpr uint32_t kAmax = 0x43e00000;  // 448: quantise_f32 scales by 1.
  struct Kernel {
    const char* name;
    uint64_t bytes;
  };
  const Kernel kernels[] = {{"cast_f32_bf16", 2}, {"cast_f32_f16", 2}, {"quantise_f32", 1}};
  uint8_t* const source = gpu::AllocatePinned(4 * kPart);
  uint8_t* const result = gpu::AllocatePinned(2 * kPart);
  std::vector<uint8_t> expected(2 * kPart);
  const uint64_t device_source = gpu::Allocate(4 * kPart);
  const uint64_t device_target = gpu::Allocate(2 * kPart);
  const uint64_t device_amax = gpu::Allocate(8);
  gpu::Upload(device_amax, &kAmax, 4);
  for (uint64_t begin = 0; begin < uint64_t{1} << 32; begin += kPart) {
    Parallel(kPart, [&](uint64_t from, uint64_t to) {
      for (uint64_t i = from; i < to; ++i)
        Store<uint32_t>(reinterpret_cast<uint64_t>(source) + 4 * i, begin + i);
    });
    gpu::Upload(device_source, source, 4 * kPart);
    for (const auto& kernel : kernels) {
      const bool cast = kernel.bytes == 2;
      Parallel(kPart / 8, [&](uint64_t from, uint64_t to) {
        uint32_t amax[2] = {kAmax, 0};
        const auto amax_at = reinterpret_cast<uint64_t>(static_cast<void*>(amax));
        const uint64_t in = reinterpret_cast<uint64_t>(source) + 4 * 8 * from;
        const uint64_t out = reinterpret_cast<uint64_t>(expected.data()) + kernel.bytes * 8 * from;
        CastParameters casts{in, out, 8 * (to - from)};
        QuantiseParameters quantise{in, out, 8 * (to - from), amax_at, amax_at + 4};
        void* parameter = cast ? static_cast<void*>(&casts) : &quantise;
        FindHostKernel(kernel.name)->run({1, 1}, &parameter);
      });
      for (const auto& text : texts) {
        CastParameters casts{device_source, device_target, kPart};
        QuantiseParameters quantise{device_source, device_target, kPart, device_amax, device_amax + 4};
        gpu::Launch(gpu::Function(text.module, kernel.name), 1056, 512,
                    cast ? static_cast<void*>(&casts) : &quantise);
        gpu::Wait();
        gpu::Download(result, device_target, kernel.bytes * kPart);
        ExpectEqual(expected.data(), result, kernel.bytes * kPart,
                    std::string(kernel.name) + " of " + text.name + ", values from " + std::to_string(begin));
      }
    }
  }
  for (const auto& kernel : kernels) std::printf("%-22s all 2^32 values equal\n", kernel.name);
}

}  // namespace

int main() {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  std::printf("GPU: %s\n", gpu::Start().c_str());
  const std::vector<Text> texts = {{"sm_80", gpu::LoadModule(PtxForSm80().data())},
                                   {"sm_90", gpu::LoadModule(PtxForSm90().data())}};
  uint8_t* const result = gpu::AllocatePinned(kernel_cases::kArena);
  const uint64_t arena = gpu::Allocate(kernel_cases::kArena);
  const uint64_t from = gpu::Allocate(kLarge);
  const uint64_t to = gpu::Allocate(kLarge);
  const uint64_t words = gpu::Allocate(64 << 20);
  gpu::Call("cuMemsetD8_v2", words, static_cast<unsigned char>(0), size_t{64 << 20});
  FillParameters pattern{from, kLarge, 1};
  gpu::Launch(gpu::Function(texts[0].module, "fill"), 1056, 512, &pattern);
  gpu::Wait();
  for (const auto& kernel : HostKernels()) {
    const std::string name(kernel.name);
    CheckCases(name, texts, arena, result);
    std::printf("%-22s %u cases equal", name.c_str(), kCases);
    auto measurement = MeasurementOf(name, from, to, words);
    for (const auto& text : texts)
      std::printf("  %s %5.0f GB/s", text.name,
                  Measure(gpu::Function(text.module, name.c_str()), measurement));
    std::printf("\n");
  }
  gpu::Free(from);
  gpu::Free(to);
  CheckAllF32(texts);
  std::printf("all kernels equal their host versions\n");
  return 0;
}
