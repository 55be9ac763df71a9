// Our kernels, launched through the fake driver, which runs their host versions.
#include "device/kernels.h"

#include <cstring>
#include <vector>

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

}  // namespace
}  // namespace weightcast::device
