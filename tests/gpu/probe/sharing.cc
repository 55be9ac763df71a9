// E8, E11 and E13: what mapping memory of another process costs, and which ways there are.
#include "gpu/probe/experiments.h"
#include "gpu/probe/exporter.h"
#include "gpu/probe/report.h"

namespace probe {

using namespace weightcast::drivers;  // NOLINT

namespace {

constexpr uint64_t kSharedSeed = 0x5EED;

double Milliseconds(Clock::time_point begin) { return 1e3 * SecondsSince(begin); }

void ExpectPattern(Device& device, CUdeviceptr address, uint64_t bytes) {
  if (device.Differences(address, bytes, kSharedSeed) != 0)
    Fail("other bytes were mapped than were exported");
}

}  // namespace

void MappingCosts() {
  constexpr int kOpens = 6;
  const uint64_t pages = Scaled(760, 40);
  Exporter exporter(PeerDevice());
  Device device(0);
  const Current current(device);
  // First, so that nothing has been mapped of that device.
  std::vector<double> opens;
  std::vector<double> closes;
  std::vector<CUdeviceptr> opened;
  const uint64_t bytes = Scaled(64, 4) * kMiB;
  for (int i = 0; i < kOpens; ++i) {
    const auto handle = exporter.Allocate(bytes, kSharedSeed);
    const auto begin = Clock::now();
    opened.push_back(OpenLegacy(handle));
    opens.push_back(Milliseconds(begin));
    ExpectPattern(device, opened.back(), bytes);
  }
  for (const CUdeviceptr address : opened) {
    const auto begin = Clock::now();
    Check(Driver().IpcCloseMemHandle(address), "cuIpcCloseMemHandle");
    closes.push_back(Milliseconds(begin));
  }

  exporter.Create(pages, kSharedSeed);
  ImportedPages imported(device, pages);
  double map_ms = 0;  // Without the time that descriptors are on their way.
  for (uint64_t taken = 0; taken < pages;) {
    const auto fds = exporter.TakePages();
    if (fds.empty()) Fail("fewer descriptors came than were exported");
    const auto begin = Clock::now();
    imported.Map(fds);
    map_ms += Milliseconds(begin);
    taken += fds.size();
  }
  const auto allow_begin = Clock::now();
  Check(imported.Allow(CU_MEM_ACCESS_FLAGS_PROT_READWRITE), "cuMemSetAccess");
  const double access_ms = Milliseconds(allow_begin);
  ExpectPattern(device, imported.address(), pages * kPage);
  const auto unmap_begin = Clock::now();
  Check(imported.Unmap(), "cuMemUnmap");
  const double unmap_ms = Milliseconds(unmap_begin);
  const double first = opens.front();
  const double later = Median({opens.begin() + 1, opens.end()});
  const double all = map_ms + access_ms;
  Print({.experiment =
             "E8: mapping " + std::to_string(pages) + " pages of 2 MiB; opening a legacy handle first, later",
         .predicted = "50; 10, 0.3",
         .measured = Text({all, first, later}),
         .unit = "ms",
         .verdict = VerdictIf(all <= 75 && first <= 15 && later <= 0.5),
         .note = Way() + "; cuMemSetAccess alone " + Text(access_ms) + " ms, unmapping all pages " +
                 Text(unmap_ms) + " ms, closing a legacy handle " + Text(Median(closes)) + " ms",
         .figures = {{"import_and_map_ms", map_ms},
                     {"set_access_ms", access_ms},
                     {"unmap_ms", unmap_ms},
                     {"first_open_ms", first},
                     {"later_open_ms", later},
                     {"close_ms", Median(closes)}}});
}

void ReadOnlyMapping() {
  constexpr uint64_t kPages = 4;
  Exporter exporter(PeerDevice());
  Device device(0);
  const Current current(device);
  exporter.Create(kPages, kSharedSeed);
  ImportedPages imported(device, kPages);
  imported.Map(exporter.TakePages());
  const CUresult allowed = imported.Allow(CU_MEM_ACCESS_FLAGS_PROT_READ);
  uint64_t differences = 1;
  CUresult copied = allowed;
  if (allowed == CUDA_SUCCESS) {
    const CUdeviceptr target = Device::Allocate(kPages * kPage);
    copied = Driver().MemcpyAsync(target, imported.address(), kPages * kPage, device.stream());
    if (copied == CUDA_SUCCESS) copied = device.TryWait(device.stream());
    if (copied == CUDA_SUCCESS) differences = device.Differences(target, kPages * kPage, kSharedSeed);
  }
  const bool works = copied == CUDA_SUCCESS && differences == 0;
  Print({.experiment = "E11: an imported handle mapped with PROT_READ",
         .predicted = "works",
         .measured = works ? "works" : "does not work",
         .unit = "",
         .verdict = VerdictIf(works),
         .note = Way() + "; cuMemSetAccess: " + Words(allowed) + "; a copy out of it: " + Words(copied),
         .figures = {{"set_access", allowed},
                     {"copy", copied},
                     {"different_words", static_cast<double>(differences)}}});
}

void FabricHandles() {
  const Device device(0);
  const Current current(device);
  int supported = -1;
  CUdevice number = 0;
  Check(Driver().DeviceGet(&number, 0), "cuDeviceGet");
  const CUresult asked =
      Driver().DeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED, number);
  const auto create = [](int types) {
    const CUmemAllocationProp wanted = Exported(0, static_cast<CUmemAllocationHandleType>(types));
    CUmemGenericAllocationHandle handle = 0;
    const CUresult created = Driver().MemCreate(&handle, kPage, &wanted, 0);
    if (created == CUDA_SUCCESS) Check(Driver().MemRelease(handle), "cuMemRelease");
    return created;
  };
  const CUresult fabric = create(CU_MEM_HANDLE_TYPE_FABRIC);
  const CUresult both = create(CU_MEM_HANDLE_TYPE_FABRIC | CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  const CUresult descriptor = create(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  Print({.experiment = "E13: fabric handles without IMEX",
         .predicted = "refused by cuMemCreate",
         .measured = fabric == CUDA_SUCCESS ? "made" : "refused by cuMemCreate",
         .unit = "",
         .verdict = VerdictIf(fabric != CUDA_SUCCESS),
         .note = "fabric: " + Words(fabric) + "; fabric and descriptor at once: " + Words(both) +
                 "; descriptor: " + Words(descriptor) + "; the device's attribute says " +
                 (asked == CUDA_SUCCESS ? std::to_string(supported) : Words(asked)),
         .figures = {
             {"fabric", fabric}, {"both", both}, {"descriptor", descriptor}, {"attribute", supported}}});
}

}  // namespace probe
