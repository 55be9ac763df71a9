#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "drivers/cuda/cuda.h"

/// The driver as the experiments use it. Any error that an experiment does not expect ends the process with a
/// sentence and status 2. Nothing is given back but what an experiment is about: each is a process of its
/// own.
namespace probe {

using weightcast::drivers::CUcontext;
using weightcast::drivers::CUdeviceptr;
using weightcast::drivers::CUevent;
using weightcast::drivers::CUfunction;
using weightcast::drivers::CUmodule;
using weightcast::drivers::CUresult;
using weightcast::drivers::CUstream;

inline constexpr uint64_t kMiB = uint64_t{1} << 20;

/// The table of the machine's library, loaded and initialised by the first call.
weightcast::drivers::Cuda& Driver();
/// Devices that this process sees; at least one.
int Devices();
/// The second device where there is one, else the only one: where the peers of an experiment are.
int PeerDevice();
/// "device 1 to device 0", or "within device 0".
std::string Way();
/// The fake driver plays the GPUs: everything is small, and figures say nothing.
bool OnFake();
/// The first on GPUs, the second on the fake.
uint64_t Scaled(uint64_t real, uint64_t fake);

/// Prints the sentence and ends the process with status 2.
[[noreturn]] void Fail(const std::string& what);
/// "error 2, out of memory", as the driver has it; "ok".
std::string Words(CUresult result);
/// Ends the process unless the call succeeded.
void Check(CUresult result, const char* call);

using Clock = std::chrono::steady_clock;
double SecondsSince(Clock::time_point begin);
void Sleep(double seconds);
double Median(std::vector<double> values);
double Quantile(std::vector<double> values, double part);

/// A device with its primary context, a stream of high priority and the kernels of src/kernels. While a
/// Current exists, calls of this thread go to the device.
class Device {
 public:
  explicit Device(int ordinal);
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  [[nodiscard]] int ordinal() const { return ordinal_; }
  [[nodiscard]] CUcontext context() const { return context_; }
  [[nodiscard]] CUstream stream() const { return stream_; }

  // The device must be current for all of these.
  [[nodiscard]] static CUdeviceptr Allocate(uint64_t bytes);
  [[nodiscard]] static CUstream NewStream();
  [[nodiscard]] static CUevent NewEvent();
  /// Waits for what the stream holds. Ends the process on an error.
  void Wait(CUstream stream) const;
  /// The same; gives the error.
  [[nodiscard]] CUresult TryWait(CUstream stream) const;
  /// `name` is not copied.
  [[nodiscard]] CUfunction Kernel(const char* name);
  void Launch(const char* kernel, unsigned int blocks, unsigned int threads, void* parameters,
              CUstream stream);
  /// The 8 bytes at offset i become seed + i. Waits.
  void Fill(CUdeviceptr address, uint64_t bytes, uint64_t seed);
  /// How many words of the memory are not what Fill writes. Waits.
  [[nodiscard]] uint64_t Differences(CUdeviceptr address, uint64_t bytes, uint64_t seed);
  /// Adds that number to the 8 bytes at `word`, in the stream.
  void Compare(CUdeviceptr address, uint64_t bytes, uint64_t seed, CUdeviceptr word, CUstream stream);

 private:
  int ordinal_;
  CUcontext context_{};
  CUstream stream_{};
  CUevent over_{};
  CUmodule module_{};
  std::map<std::string_view, CUfunction> kernels_;
  CUdeviceptr differences_ = 0;
  uint64_t* found_ = nullptr;  ///< Pinned.
};

class Current {
 public:
  explicit Current(const Device& device);
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;
  ~Current();
};

/// Host memory that devices write to and the processor reads, 64 bytes to a word.
class Words64 {
 public:
  explicit Words64(size_t count);
  [[nodiscard]] CUdeviceptr at(size_t word) const { return device_ + 64 * word; }
  [[nodiscard]] uint64_t Load(size_t word) const;
  /// Spins until the word is at least `value`; false after `seconds`.
  [[nodiscard]] bool Await(size_t word, uint64_t value, double seconds = 5) const;

 private:
  uint64_t* host_ = nullptr;
  CUdeviceptr device_ = 0;
};

/// Pinned host memory.
void* PinnedMemory(uint64_t bytes);
inline CUdeviceptr Address(const void* host) { return reinterpret_cast<CUdeviceptr>(host); }
/// Both may reach each other's memory; nothing to do for one device. The first is current.
void EnablePeers(const Device& a, const Device& b);

/// Writes 8 bytes behind what the stream holds. Ends the process where the device has no such call.
void WriteWord(CUstream stream, CUdeviceptr word, uint64_t value);

}  // namespace probe
