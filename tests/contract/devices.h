#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "contract/side.h"
#include "drivers/cuda/cuda.h"

namespace weightcast::transport {

inline constexpr int kOutOfMemory = 2;      ///< CUDA_ERROR_OUT_OF_MEMORY
inline constexpr int kUncorrectable = 214;  ///< CUDA_ERROR_ECC_UNCORRECTABLE

/// How many bytes this process has moved through host memory because no device could reach them.
uint64_t BytesStaged();

/// The folder of a machine of tests/fake_cuda, for the processes of one test. At its end the machine must
/// have ended by itself.
class FakeMachine {
 public:
  /// `config`: what stands in FAKE_CUDA besides the folder and two devices. WC_TEST_SEED is the seed of all
  /// orders, WC_TEST_DELAY_US the longest pause between two pieces of a copy.
  explicit FakeMachine(std::string config = "");
  FakeMachine(const FakeMachine&) = delete;
  FakeMachine& operator=(const FakeMachine&) = delete;
  ~FakeMachine();
  [[nodiscard]] const std::string& config() const { return config_; }

 private:
  std::string path_;
  std::string config_;
};

/// Calls of this thread go to a context while it exists, and disturb no capture.
class CurrentContext {
 public:
  CurrentContext(drivers::Cuda& cuda, drivers::CUcontext context);
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;
  ~CurrentContext();

 private:
  drivers::Cuda& cuda_;
  drivers::CUstreamCaptureMode mode_{};
};

/// This process as a user of a machine's devices: those of the fake driver, or real ones with WC_TEST_CUDA=1.
/// Make it after the fork. At its end nothing of the driver's may live. One at a time.
class DevicesInUse final : public TestDevices {
 public:
  explicit DevicesInUse(const FakeMachine& machine);
  DevicesInUse(const DevicesInUse&) = delete;
  DevicesInUse& operator=(const DevicesInUse&) = delete;
  ~DevicesInUse() override;

  Memory Allocate(size_t size, bool exportable) override;
  void Free(const Memory& memory) override;
  void Write(const Memory& memory, size_t offset, std::span<const std::byte> bytes) override;
  void Read(const Memory& memory, size_t offset, std::span<std::byte> bytes) override;
  void Set(const Memory& memory, size_t offset, std::byte value, size_t length) override;
  /// Until the driver has taken back what a process had that was killed: it does so a while after its death.
  static void AwaitBurial(int pid);
  /// Objects of a lost context cannot be given back.
  void ExpectLeftovers() { leftovers_ = true; }
  [[nodiscard]] drivers::Cuda& cuda() const { return *cuda_; }
  [[nodiscard]] drivers::CUcontext context(int ordinal) const { return parts_[Index(ordinal)].context; }

 private:
  /// Of one device.
  struct Part {
    drivers::CUcontext context{};
    drivers::CUstream stream{};
    void* pinned = nullptr;
  };
  /// Memory of cuMemCreate, mapped for its own device alone.
  drivers::CUdeviceptr CreateSecluded(int ordinal, size_t size);
  void FreeSecluded(drivers::CUdeviceptr address);
  [[nodiscard]] size_t Index(int ordinal) const { return static_cast<size_t>(ordinal); }
  void Copy(int ordinal, drivers::CUdeviceptr to, drivers::CUdeviceptr from, size_t length);
  void Finish(int ordinal);

  std::shared_ptr<drivers::Cuda> cuda_;
  std::vector<Part> parts_;
  struct Secluded {
    drivers::CUmemGenericAllocationHandle handle = 0;
    size_t length = 0;
  };
  std::map<drivers::CUdeviceptr, Secluded> secluded_;
  int next_ = 0;
  bool leftovers_ = false;
};

/// Whether the suite runs on the fake driver.
bool OnFakeDriver();

}  // namespace weightcast::transport
