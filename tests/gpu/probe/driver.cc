#include "gpu/probe/driver.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "kernels/fill.h"
#include "kernels/ptx.h"

namespace probe {

using namespace weightcast::drivers;  // NOLINT

namespace {

constexpr unsigned int kBlocks = 1056;  // Eight on each multiprocessor of an H100.
constexpr unsigned int kThreads = 512;

}  // namespace

Cuda& Driver() {
  static const std::shared_ptr<Cuda> cuda = [] {
    auto loaded = LoadCuda(CudaUse::kAsked);
    if (!loaded.ok()) Fail(loaded.status().message());
    if (const CUresult result = (*loaded)->Init(0); result != CUDA_SUCCESS)
      Fail("cuInit: error " + std::to_string(result));
    return *loaded;
  }();
  return *cuda;
}

int Devices() {
  static const int count = [] {
    int found = 0;
    Check(Driver().DeviceGetCount(&found), "cuDeviceGetCount");
    if (found == 0) Fail("this process sees no device");
    return found;
  }();
  return count;
}

int PeerDevice() { return Devices() > 1 ? 1 : 0; }

std::string Way() { return Devices() > 1 ? "device 1 to device 0" : "within device 0"; }

bool OnFake() { return std::getenv("FAKE_CUDA") != nullptr; }

uint64_t Scaled(uint64_t real, uint64_t fake) { return OnFake() ? fake : real; }

void Fail(const std::string& what) {
  std::fprintf(stderr, "probe: %s\n", what.c_str());
  std::_Exit(2);
}

std::string Words(CUresult result) {
  if (result == CUDA_SUCCESS) return "ok";
  const char* words = nullptr;
  if (Driver().GetErrorString(result, &words) != CUDA_SUCCESS || words == nullptr) words = "unknown";
  return "error " + std::to_string(result) + ", " + words;
}

void Check(CUresult result, const char* call) {
  if (result != CUDA_SUCCESS) Fail(std::string(call) + ": " + Words(result));
}

double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

void Sleep(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

double Quantile(std::vector<double> values, double part) {
  if (values.empty()) Fail("nothing was measured");
  const auto at = static_cast<size_t>(part * static_cast<double>(values.size() - 1) + 0.5);
  std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(at), values.end());
  return values[at];
}

double Median(std::vector<double> values) { return Quantile(std::move(values), 0.5); }

// --- Device

Device::Device(int ordinal) : ordinal_(ordinal) {
  CUdevice device = 0;
  Check(Driver().DeviceGet(&device, ordinal), "cuDeviceGet");
  Check(Driver().DevicePrimaryCtxRetain(&context_, device), "cuDevicePrimaryCtxRetain");
  const Current current(*this);
  stream_ = NewStream();
  over_ = NewEvent();
  int major = 0;
  Check(Driver().DeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device),
        "cuDeviceGetAttribute");
  const auto text = major >= 9 ? weightcast::kernels::PtxForSm90() : weightcast::kernels::PtxForSm80();
  Check(Driver().ModuleLoadDataEx(&module_, text.data(), 0, nullptr, nullptr), "cuModuleLoadDataEx");
  differences_ = Allocate(sizeof(uint64_t));
  found_ = static_cast<uint64_t*>(PinnedMemory(sizeof(uint64_t)));
}

CUdeviceptr Device::Allocate(uint64_t bytes) {
  CUdeviceptr address = 0;
  Check(Driver().MemAlloc(&address, bytes), "cuMemAlloc");
  return address;
}

CUstream Device::NewStream() {
  int least = 0;
  int greatest = 0;
  Check(Driver().CtxGetStreamPriorityRange(&least, &greatest), "cuCtxGetStreamPriorityRange");
  CUstream stream{};
  Check(Driver().StreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, greatest),
        "cuStreamCreateWithPriority");
  return stream;
}

CUevent Device::NewEvent() {
  CUevent event{};
  Check(Driver().EventCreate(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
  return event;
}

CUresult Device::TryWait(CUstream stream) const {
  if (const CUresult result = Driver().EventRecord(over_, stream); result != CUDA_SUCCESS) return result;
  return Driver().EventSynchronize(over_);
}

void Device::Wait(CUstream stream) const { Check(TryWait(stream), "cuEventSynchronize"); }

CUfunction Device::Kernel(const char* name) {
  CUfunction& function = kernels_[name];
  if (function == nullptr) Check(Driver().ModuleGetFunction(&function, module_, name), "cuModuleGetFunction");
  return function;
}

void Device::Launch(const char* kernel, unsigned int blocks, unsigned int threads, void* parameters,
                    CUstream stream) {
  void* all[] = {parameters};
  Check(Driver().LaunchKernel(Kernel(kernel), blocks, 1, 1, threads, 1, 1, 0, stream, all, nullptr),
        "cuLaunchKernel");
}

void Device::Fill(CUdeviceptr address, uint64_t bytes, uint64_t seed) {
  weightcast::kernels::FillParameters parameters{address, bytes, seed};
  Launch("fill", kBlocks, kThreads, &parameters, stream_);
  Wait(stream_);
}

void Device::Compare(CUdeviceptr address, uint64_t bytes, uint64_t seed, CUdeviceptr word, CUstream stream) {
  weightcast::kernels::CompareParameters parameters{address, bytes, seed, word};
  const auto blocks = static_cast<unsigned int>(std::clamp<uint64_t>(bytes / (16 * kThreads), 1, kBlocks));
  Launch("compare", blocks, kThreads, &parameters, stream);
}

uint64_t Device::Differences(CUdeviceptr address, uint64_t bytes, uint64_t seed) {
  Check(Driver().MemsetD8Async(differences_, 0, sizeof(uint64_t), stream_), "cuMemsetD8Async");
  Compare(address, bytes, seed, differences_, stream_);
  Check(Driver().MemcpyAsync(Address(found_), differences_, sizeof(uint64_t), stream_), "cuMemcpyAsync");
  Wait(stream_);
  return *found_;
}

Current::Current(const Device& device) {
  Check(Driver().CtxPushCurrent(device.context()), "cuCtxPushCurrent");
}

Current::~Current() {
  CUcontext popped{};
  Driver().CtxPopCurrent(&popped);
}

// --- Host memory

void* PinnedMemory(uint64_t bytes) {
  void* host = nullptr;
  Check(Driver().MemHostAlloc(&host, bytes, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP),
        "cuMemHostAlloc");
  std::memset(host, 0, bytes);
  return host;
}

Words64::Words64(size_t count) : host_(static_cast<uint64_t*>(PinnedMemory(64 * count))) {
  Check(Driver().MemHostGetDevicePointer(&device_, host_, 0), "cuMemHostGetDevicePointer");
}

uint64_t Words64::Load(size_t word) const {
  return std::atomic_ref(host_[8 * word]).load(std::memory_order_acquire);
}

bool Words64::Await(size_t word, uint64_t value, double seconds) const {
  constexpr int kLooks = 4096;
  for (const auto begin = Clock::now(); SecondsSince(begin) < seconds;) {
    for (int look = 0; look < kLooks; ++look)
      if (Load(word) >= value) return true;
    if (OnFake()) std::this_thread::yield();  // Its GPU needs a processor.
  }
  return false;
}

void EnablePeers(const Device& a, const Device& b) {
  if (a.ordinal() == b.ordinal()) return;
  const auto enable = [](const Device& from, const Device& to) {
    const Current current(from);
    const CUresult result = Driver().CtxEnablePeerAccess(to.context(), 0);
    if (result != CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) Check(result, "cuCtxEnablePeerAccess");
  };
  enable(a, b);
  enable(b, a);
}

void WriteWord(CUstream stream, CUdeviceptr word, uint64_t value) {
  Check(Driver().StreamWriteValue64(stream, word, value, CU_STREAM_WRITE_VALUE_DEFAULT),
        "cuStreamWriteValue64");
}

}  // namespace probe
