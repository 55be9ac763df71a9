#include "tools/bench/p2p/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/strings.h"
#include "device/in_process.h"

namespace weightcast::tools {
namespace {

constexpr size_t kHugePage = 2 << 20;
constexpr uint64_t kOdd = 0x9E3779B97F4A7C15;

/// The pattern is a sum, so that writing and comparing it costs little beside the memory's own time.
void FillPiece(std::byte* out, uint64_t bytes, uint64_t seed) {
  uint64_t i = 0;
  for (; i + 8 <= bytes; i += 8) {
    const uint64_t word = seed + i;
    std::memcpy(out + i, &word, 8);
  }
  const uint64_t last = seed + i;
  std::memcpy(out + i, &last, bytes - i);
}

bool HoldsPiece(const std::byte* in, uint64_t bytes, uint64_t seed) {
  uint64_t i = 0;
  uint64_t differences = 0;
  for (; i + 8 <= bytes; i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, in + i, 8);
    differences |= word ^ (seed + i);
  }
  const uint64_t last = seed + i;
  return differences == 0 && std::memcmp(in + i, &last, bytes - i) == 0;
}

uint64_t SeedOf(const PartyWork& work, uint64_t slot, uint64_t piece) {
  return (work.seed + slot * work.iovs + piece + 1) * kOdd;
}

void FillRound(std::span<std::byte> memory, const PartyWork& work) {
  for (uint64_t slot = 0; slot < work.slots; ++slot) {
    std::byte* const base = memory.data() + work.from + slot * work.stride();
    for (uint64_t i = 0; i < work.iovs; ++i)
      FillPiece(base + 2 * i * work.piece_bytes, work.piece_bytes, SeedOf(work, slot, i));
  }
}

Status CheckRound(std::span<const std::byte> memory, const PartyWork& work) {
  bool same = true;
  for (uint64_t slot = 0; slot < work.slots; ++slot) {
    const std::byte* const base = memory.data() + work.to + slot * work.stride();
    for (uint64_t i = 0; i < work.iovs; ++i)
      same &= HoldsPiece(base + 2 * i * work.piece_bytes, work.piece_bytes, SeedOf(work, slot, i));
  }
  if (same) return Status::Ok();
  return Error(Code::kCorrupt, "the target holds other bytes than the source after ", work.slots,
               " transfers (", work.op, ") of ", work.iovs, " x ", work.piece_bytes,
               " bytes; please report this as a bug, with this line and the command line");
}

/// Parties take the given devices in turn; without any, the first two of the machine, or its only one.
Result<int64_t> DeviceOf(const PartySetup& setup, const Settings& settings) {
  WC_ASSIGN_OR_RETURN(const auto devices, device::DevicesInProcess(settings));
  const auto count = static_cast<int64_t>(devices->gpus()->all().size());
  if (setup.devices.empty()) return setup.number % std::min<int64_t>(count, 2);
  const int64_t device = setup.devices[setup.number % setup.devices.size()];
  if (device < count) return device;
  return Error(Code::kInvalidArgument, "--devices names device ", device, "; name one of the ", count,
               " that the host of process ", setup.number, " has, numbered from 0");
}

}  // namespace

bool OfDevice(const std::string& kind) { return kind == "cuda" || kind == "cuda-pages"; }

Result<BenchMemory> BenchMemory::Make(const PartySetup& setup, const Settings& settings, size_t bytes) {
  if (!OfDevice(setup.memory)) return OnHost(setup.memory, bytes);
  WC_ASSIGN_OR_RETURN(BenchMemory memory, OnHost("any", bytes));
  WC_ASSIGN_OR_RETURN(const int64_t device, DeviceOf(setup, settings));
  const auto how = setup.memory == "cuda-pages" ? DeviceAllocation::kPages : DeviceAllocation::kPlain;
  WC_ASSIGN_OR_RETURN(memory.block_, DeviceBlock::Make(settings, device, how, bytes));
  return memory;
}

Result<BenchMemory> BenchMemory::OnHost(const std::string& kind, size_t bytes) {
  BenchMemory memory;
  if (kind == "mapped") {
    WC_ASSIGN_OR_RETURN(memory.shared_, Allocate(bytes));
    memory.bytes_ = memory.shared_->bytes();
    return memory;
  }
  const bool huge = kind == "huge";
  const size_t room = huge ? (bytes + kHugePage - 1) / kHugePage * kHugePage : bytes;
  void* pages = mmap(nullptr, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED)
    return Error(Code::kExhausted, "cannot allocate ", bytes, " bytes: ", ErrnoText(errno),
                 "; give smaller --sizes");
  // What a system that never gives huge pages says to this does not matter: then there are none.
  madvise(pages, room, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
  // Never unmapped: the process that owns it ends with its measurements.
  memory.bytes_ = {static_cast<std::byte*>(pages), bytes};
  return memory;
}

Status BenchMemory::Fill(const PartyWork& work) {
  FillRound(bytes_, work);
  if (block_ == nullptr) return Status::Ok();
  return block_->Write(work.from, bytes_.subspan(work.from, work.slots * work.stride()));
}

Status BenchMemory::Check(const PartyWork& work) {
  if (block_ != nullptr) {
    WC_RETURN_IF_ERROR(block_->Read(work.to, bytes_.subspan(work.to, work.slots * work.stride())));
  }
  return CheckRound(bytes_, work);
}

}  // namespace weightcast::tools
