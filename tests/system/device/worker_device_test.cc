// A trainer and an engine whose tensors lie on devices, on the fake driver, in one process.
#include <gmock/gmock.h>

#include <bit>
#include <cstring>
#include <string>
#include <vector>

#include "system/device/worker_scene.h"
#include "trace/metrics.h"

namespace weightcast {
namespace {

using ::testing::HasSubstr;

class WorkerDevice : public WorkerScene {};

/// fp32 in columns at the trainer, bf16 in rows at the engine; a second tensor goes as it lies, a third is on
/// the host.
TEST_F(WorkerDevice, CastAndGatheredOnTheWay) {
  constexpr int64_t kRows = 300;
  constexpr int64_t kColumns = 170;
  std::vector<float> columns(kRows * kColumns);
  for (size_t i = 0; i < columns.size(); ++i) columns[i] = static_cast<float>(i % 251) - 100;
  std::vector<std::byte> plain(1000, std::byte{5});
  std::vector<std::byte> host_source(500, std::byte{6});
  std::vector<std::byte> host_target(500);
  const Memory matrix = Allocate(columns.size() * sizeof(float));
  const Memory bytes = Allocate(plain.size());
  const Memory matrix_there = Allocate(columns.size() * 2);
  const Memory bytes_there = Allocate(plain.size());
  devices.Write(matrix, 0, std::as_bytes(std::span(columns)));
  devices.Write(bytes, 0, plain);
  {
    const auto trainer = ConnectTrainer();
    Shard transposed = Whole("matrix", DType::kF32, {kRows, kColumns}, matrix);
    transposed.strides = {1, kRows};
    ASSERT_TRUE(trainer
                    ->Register({.shards = {transposed, Whole("bytes", DType::kU8, {1000}, bytes),
                                           Whole("host", DType::kU8, {500}, HostMemory(host_source))}},
                               {})
                    .ok());
    const auto inference = ConnectInference();
    ASSERT_TRUE(inference
                    ->Register({.shards = {Whole("matrix", DType::kBF16, {kRows, kColumns}, matrix_there),
                                           Whole("bytes", DType::kU8, {1000}, bytes_there),
                                           Whole("host", DType::kU8, {500}, HostMemory(host_target))}},
                               {.landing = LandingMode::kShadow})
                    .ok());
    const uint64_t kernels = Counted("gpu.kernels");
    const uint64_t on_host = Counted("gpu.host_casts");
    Move(*trainer, *inference, 1);
    EXPECT_GT(Counted("gpu.kernels"), kernels);
    EXPECT_EQ(Counted("gpu.host_casts"), on_host);
    std::vector<uint16_t> landed(columns.size());
    devices.Read(matrix_there, 0, std::as_writable_bytes(std::span(landed)));
    for (int64_t row = 0; row < kRows; ++row) {
      for (int64_t column = 0; column < kColumns; ++column) {
        const float sent =
            columns[static_cast<size_t>(column * kRows + row)];  // Whole numbers fit into bf16.
        ASSERT_EQ(landed[static_cast<size_t>(row * kColumns + column)], std::bit_cast<uint32_t>(sent) >> 16);
      }
    }
    std::vector<std::byte> got(plain.size());
    devices.Read(bytes_there, 0, got);
    EXPECT_EQ(got, plain);
    EXPECT_EQ(host_target, host_source);
    // What was sent as it lies has the same digest on both sides.
    const auto there = inference->Digest();
    const auto here = trainer->Digest();
    ASSERT_TRUE(there.ok() && here.ok());
    EXPECT_EQ((*there)[1].digest, (*here)[1].digest);
    inference->Close();
    trainer->Close();
  }
  FreeAll();
}

/// The setting gpu_kernels=0: the same bytes by way of the host.
TEST_F(WorkerDevice, CastsOnTheHostWhereKernelsAreOff) {
  constexpr int64_t kCount = 3001;
  std::vector<float> values(kCount);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 251) - 100;
  const Memory source = Allocate(kCount * sizeof(float));
  const Memory target = Allocate(kCount * 2);
  devices.Write(source, 0, std::as_bytes(std::span(values)));
  {
    WorkerOptions options = Options();
    options.settings["gpu_kernels"] = "0";
    auto trainer = Trainer::Connect(options);
    ASSERT_TRUE(trainer.ok());
    ASSERT_TRUE((*trainer)->Register({.shards = {Whole("a", DType::kF32, {kCount}, source)}}, {}).ok());
    const auto inference = ConnectInference();
    ASSERT_TRUE(inference->Register({.shards = {Whole("a", DType::kBF16, {kCount}, target)}}, {}).ok());
    const uint64_t kernels = Counted("gpu.kernels");
    Move(**trainer, *inference, 1);
    EXPECT_EQ(Counted("gpu.kernels"), kernels);
    std::vector<uint16_t> landed(kCount);
    devices.Read(target, 0, std::as_writable_bytes(std::span(landed)));
    for (size_t i = 0; i < landed.size(); ++i)
      ASSERT_EQ(landed[i], std::bit_cast<uint32_t>(values[i]) >> 16) << i;
    inference->Close();
    (*trainer)->Close();
  }
  FreeAll();
}

TEST_F(WorkerDevice, RefusesWhatIsNotBuiltByName) {
  const Memory memory = Allocate(100);
  {
    WorkerOptions options = Options();
    options.settings["checksum"] = "1";
    auto trainer = Trainer::Connect(options);
    ASSERT_TRUE(trainer.ok());
    const Status checksum = (*trainer)->Register({.shards = {Whole("a", DType::kU8, {100}, memory)}}, {});
    EXPECT_EQ(checksum.code(), Code::kInvalidArgument);
    EXPECT_THAT(checksum.message(), HasSubstr("tensor a is in memory of GPU "));
    EXPECT_THAT(checksum.message(), HasSubstr("checksum"));
    Shard lie = Whole("a", DType::kU8, {100}, memory);
    lie.memory.device = 1 - lie.memory.device;
    const auto other = ConnectInference();
    EXPECT_THAT(other->Register({.shards = {lie}}, {}).message(), HasSubstr("tensor a: the memory at"));
    EXPECT_EQ(other->Register({.shards = {lie}}, {.landing = LandingMode::kShadow}).code(),
              Code::kInvalidArgument);
    other->Close();
    (*trainer)->Close();
  }
  FreeAll();
}

}  // namespace
}  // namespace weightcast
