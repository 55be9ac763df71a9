// Our kernels, launched through the fake driver, which runs their host versions.
#include "device/kernels.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/host_kernels.h"
#include "unit/device/fake/fake_world.h"

namespace weightcast::device {
namespace {

constexpr size_t kElements = 1000;

/// Floats on the device and room for their casts.
struct Arrays {
  explicit Arrays(Host& owner) : host(owner) {
    source = host.Alloc(kElements * 4);
    target = host.Alloc(kElements * 2);
    pinned = host.Pinned(kElements * 4);
    stream = host.Stream();
    std::vector<float> values(kElements);
    for (size_t i = 0; i < kElements; ++i) values[i] = static_cast<float>(i) * 1.37F - 500;
    std::memcpy(pinned, values.data(), kElements * 4);
    for (const float value : values) expected.push_back(kernels::ToBf16(value));
    Copy(source, Number(pinned), kElements * 4);
  }
  Arrays(const Arrays&) = delete;
  Arrays& operator=(const Arrays&) = delete;
  ~Arrays() {
    EXPECT_EQ(host.cuda->MemFree(source), drivers::CUDA_SUCCESS);
    EXPECT_EQ(host.cuda->MemFree(target), drivers::CUDA_SUCCESS);
    EXPECT_EQ(host.cuda->MemFreeHost(pinned), drivers::CUDA_SUCCESS);
    EXPECT_EQ(host.cuda->StreamDestroy(stream), drivers::CUDA_SUCCESS);
  }
  void Copy(drivers::CUdeviceptr to, drivers::CUdeviceptr from, size_t length) const {
    ASSERT_EQ(host.cuda->MemcpyAsync(to, from, length, stream), drivers::CUDA_SUCCESS);
    while (fake_cuda_step(0) != 0) {
    }
  }
  std::vector<uint16_t> Landed() const {
    Copy(Number(pinned), target, kElements * 2);
    std::vector<uint16_t> landed(kElements);
    std::memcpy(landed.data(), pinned, kElements * 2);
    return landed;
  }
  [[nodiscard]] Launch Cast() const {
    return {.kernel = "cast_f32_bf16",
            .blocks = 4,
            .threads = 64,
            .parameters = kernels::CastParameters{.source = source, .target = target, .count = kElements}};
  }
  Host& host;
  drivers::CUdeviceptr source = 0;
  drivers::CUdeviceptr target = 0;
  std::byte* pinned = nullptr;
  drivers::CUstream stream{};
  std::vector<uint16_t> expected;
};

TEST(KernelsTest, RunsACastAndReturnsWhenItIsOver) {
  for (const char* config : {"cc=80", "cc=90"}) {
    FakeWorld world(config);
    const Arrays arrays(world.host);
    {
      const NoContext none(*world.host.cuda);
      const auto kernels = Kernels::Load(world.context());
      ASSERT_TRUE(kernels.ok()) << kernels.status().ToString();
      const std::vector<Launch> launches = {arrays.Cast(), arrays.Cast()};
      ASSERT_TRUE((*kernels)->Run(launches).ok());
      ASSERT_TRUE((*kernels)->Run(launches).ok()) << "on the same stream again";
      EXPECT_EQ(fake_cuda_calls("cuModuleGetFunction"), 1U) << "functions are kept";
    }
    EXPECT_EQ(arrays.Landed(), arrays.expected) << config;
    EXPECT_EQ(fake_cuda_live(0).modules, 0U);
  }
}

TEST(KernelsTest, SaysWhyTheyDoNotLoad) {
  FakeWorld world;
  fake_cuda_fail(0, "cuModuleLoadDataEx", 1, drivers::CUDA_ERROR_UNSUPPORTED_PTX_VERSION);
  const auto kernels = Kernels::Load(world.context());
  ASSERT_FALSE(kernels.ok());
  EXPECT_NE(kernels.status().message().find("cuModuleLoadDataEx"), std::string::npos)
      << kernels.status().message();
}

TEST(KernelsTest, AfterALaunchThatFailsNothingRuns) {
  FakeWorld world;
  const Arrays arrays(world.host);
  const auto kernels = Kernels::Load(world.context()).value();
  fake_cuda_fail(0, "cuLaunchKernel", 2, drivers::CUDA_ERROR_OUT_OF_MEMORY);
  const std::vector<Launch> launches = {arrays.Cast(), arrays.Cast(), arrays.Cast()};
  const Status status = kernels->Run(launches);
  EXPECT_NE(status.message().find("cuLaunchKernel"), std::string::npos) << status.ToString();
  EXPECT_EQ(fake_cuda_step(0), 0) << "the first launch is over";
  EXPECT_TRUE(kernels->Run(launches).ok()) << "the next call has nothing of it";
}

/// The host version's sums of the same bytes in host memory.
kernels::DigestSums SumsOf(kernels::DigestParameters box, const std::byte* bytes) {
  kernels::DigestSums sums{};
  box.source = Number(bytes);
  box.sums = reinterpret_cast<uint64_t>(&sums);
  void* parameter = &box;
  kernels::FindHostKernel("digest")->run({.blocks = 1, .threads = 32}, &parameter);
  return sums;
}

/// More than a batch, of every length.
std::vector<kernels::DigestParameters> Boxes(drivers::CUdeviceptr source) {
  std::vector<kernels::DigestParameters> boxes;
  for (uint64_t i = 0; i < 600; ++i) {
    kernels::DigestParameters box{};
    box.source = source;
    box.place = i * 8000;
    box.seed[0] = i;
    box.seed[1] = ~i;
    box.row = box.end = 1 + i * 5 % (kElements * 4);
    box.cells = 2;
    box.apart = 1;
    box.unit = 16;
    box.dims = 1;
    std::fill(box.size, box.size + kernels::kBoxDims, 1);
    box.size[kernels::kBoxDims - 1] = box.cells;
    boxes.push_back(box);
  }
  return boxes;
}

TEST(KernelsTest, DigestsBoxesInBatches) {
  FakeWorld world;
  const Arrays arrays(world.host);
  const auto boxes = Boxes(arrays.source);
  std::vector<kernels::DigestSums> sums(boxes.size());
  const auto kernels = Kernels::Load(world.context()).value();
  const uint64_t allocations = fake_cuda_calls("cuMemAlloc");
  for (int round = 0; round < 2; ++round) {
    std::ranges::fill(sums, kernels::DigestSums{});
    ASSERT_TRUE(kernels->Digest(boxes, sums).ok());
    for (size_t i = 0; i < boxes.size(); ++i) {
      const kernels::DigestSums expected = SumsOf(boxes[i], arrays.pinned);
      ASSERT_EQ(std::memcmp(&sums[i], &expected, sizeof expected), 0) << i;
    }
  }
  EXPECT_EQ(fake_cuda_calls("cuMemAlloc"), allocations + 1) << "once for all";
  fake_cuda_fail(0, "cuLaunchKernel", 300, drivers::CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_NE(kernels->Digest(boxes, sums).message().find("cuLaunchKernel"), std::string::npos);
  EXPECT_EQ(fake_cuda_step(0), 0) << "what was begun is over";
  EXPECT_TRUE(kernels->Digest(boxes, sums).ok()) << "the next call has nothing of it";
}

TEST(KernelsTest, DigestsNeedMemoryOfTheDevice) {
  FakeWorld world;
  const Arrays arrays(world.host);
  const auto boxes = Boxes(arrays.source);
  std::vector<kernels::DigestSums> sums(boxes.size());
  const auto kernels = Kernels::Load(world.context()).value();
  for (const char* call : {"cuMemAlloc", "cuMemHostAlloc"}) {
    fake_cuda_fail(0, call, 1, drivers::CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_NE(kernels->Digest(boxes, sums).message().find(call), std::string::npos);
  }
  EXPECT_TRUE(kernels->Digest(boxes, sums).ok()) << "it is tried again";
}

}  // namespace
}  // namespace weightcast::device
