#include "device/describe.h"

#include <array>
#include <charconv>
#include <cstdint>
#include <string>

#include "base/advice.h"
#include "base/hash.h"
#include "base/strings.h"
#include "device/error.h"

namespace weightcast::device {
namespace {

using drivers::CUdeviceptr;

/// What the driver says of one address. The driver leaves what it does not know at 0.
struct Attributes {
  unsigned int type = 0;  ///< CU_MEMORYTYPE_*; 0: no memory that the driver knows.
  unsigned long long identity = 0;
  unsigned int managed = 0;
  int ordinal = -1;
  unsigned int legacy = 0;
  unsigned long long handle_types = 0;
  void* pool = nullptr;
};

Result<Attributes> AttributesOf(drivers::Cuda& cuda, const std::byte* address) {
  Attributes found;
  auto names = std::to_array<drivers::CUpointer_attribute>(
      {drivers::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, drivers::CU_POINTER_ATTRIBUTE_BUFFER_ID,
       drivers::CU_POINTER_ATTRIBUTE_IS_MANAGED, drivers::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
       drivers::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
       drivers::CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, drivers::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE});
  auto values = std::to_array<void*>({&found.type, &found.identity, &found.managed, &found.ordinal,
                                      &found.legacy, &found.handle_types, &found.pool});
  static_assert(names.size() == values.size());
  WC_RETURN_IF_ERROR(WC_CALL_DRIVER(cuda, PointerGetAttributes, static_cast<unsigned int>(names.size()),
                                    names.data(), values.data(), reinterpret_cast<CUdeviceptr>(address)));
  return found;
}

/// "0x7f3490800000"
std::string Text(const std::byte* address) {
  std::array<char, 16> digits{};
  const auto end =
      std::to_chars(digits.data(), digits.data() + digits.size(), reinterpret_cast<uintptr_t>(address), 16)
          .ptr;
  return StrCat("0x", std::string_view(digits.data(), end));
}

Status CheckAttributes(const Attributes& found, int ordinal, const std::byte* address) {
  if (found.type != drivers::CU_MEMORYTYPE_DEVICE) {
    return InvalidArgument(
        "the memory at ", Text(address), " is said to be of device ", ordinal, ", but the driver knows ",
        found.type == 0 ? "no memory there; give memory that is allocated and not yet freed"
                        : "host memory there; give it as host memory");
  }
  if (found.managed != 0) {
    return InvalidArgument("the memory at ", Text(address),
                           " is managed memory (cudaMallocManaged), which moves between host and device; use "
                           "plain device memory");
  }
  if (found.ordinal != ordinal) {
    return InvalidArgument("the memory at ", Text(address), " is said to be of device ", ordinal,
                           ", but is of device ", found.ordinal, "; pass that device");
  }
  return Status::Ok();
}

/// The mapping or allocation that holds `address`.
Result<Block> BlockAt(drivers::Cuda& cuda, const std::byte* address, uint64_t identity) {
  CUdeviceptr base = 0;
  size_t length = 0;
  const auto result = cuda.MemGetAddressRange(&base, &length, reinterpret_cast<CUdeviceptr>(address));
  if (result == drivers::CUDA_ERROR_NOT_FOUND) {
    return InvalidArgument("the memory at ", Text(address),
                           " is mapped without access; call cuMemSetAccess first");
  }
  WC_RETURN_IF_ERROR(DriverStatus(cuda, result, "cuMemGetAddressRange"));
  return Block{reinterpret_cast<std::byte*>(base), length, identity};
}

Exportable HowOf(const Attributes& found) {
  if (found.pool != nullptr) return Exportable::kNo;
  if (found.legacy != 0) return Exportable::kLegacy;
  if ((found.handle_types & drivers::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0)
    return Exportable::kDescriptors;
  if ((found.handle_types & drivers::CU_MEM_HANDLE_TYPE_FABRIC) != 0) return Exportable::kFabric;
  return Exportable::kNo;
}

std::string_view WhyNot(const Attributes& found) {
  return found.pool != nullptr ? "it is allocated from a memory pool (cudaMallocAsync)"
                               : "it has no shareable handle type";
}

/// A memory of the driver's at a time: what all its blocks have in common.
class Walk {
 public:
  Walk(const Context& context, std::span<const std::byte> bytes)
      : context_(context), next_(bytes.data()), end_(bytes.data() + bytes.size()) {}

  [[nodiscard]] bool done() const { return next_ >= end_; }
  /// The next block. `found`: what the driver says of it.
  Result<Block> Next(Attributes& found) {
    WC_ASSIGN_OR_RETURN(found, AttributesOf(context_.cuda(), next_));
    WC_RETURN_IF_ERROR(CheckAttributes(found, context_.ordinal(), next_));
    WC_ASSIGN_OR_RETURN(const Block block, BlockAt(context_.cuda(), next_, found.identity));
    if (block.length == 0)
      return Error(Code::kInternal, "the CUDA driver gave an empty range for the memory at ", Text(next_),
                   " of device ", context_.ordinal(), " (cuMemGetAddressRange)", kReportBug);
    next_ = block.address + block.length;
    if (!done() && found.legacy != 0) {
      return InvalidArgument(end_ - next_,
                             " of the bytes lie beyond the end of their allocation, which is at ",
                             Text(next_), "; give bytes of one allocation");
    }
    return block;
  }

 private:
  const Context& context_;
  const std::byte* next_;
  const std::byte* end_;
};

/// Of one block its own id, of several a hash of theirs: buffer ids are small, so the two do not meet.
class Identity {
 public:
  void Add(uint64_t block) {
    if (count_++ == 0) first_ = block;
    hasher_.Add(std::as_bytes(std::span(&block, 1)));
  }
  [[nodiscard]] uint64_t value() const {
    return count_ == 1 ? first_ : hasher_.Finish() | (uint64_t{1} << 63);
  }

 private:
  uint64_t first_ = 0;
  size_t count_ = 0;
  Hasher64 hasher_;
};

Status CheckBytes(const Memory& memory, int ordinal) {
  if (memory.kind != MemoryKind::kDevice || memory.device != ordinal)
    return InvalidArgument("memory of device ", memory.device, " is described as one of device ", ordinal,
                           "; pass the device that it is of");
  if (memory.address == nullptr || memory.length == 0)
    return InvalidArgument(memory.length, " bytes of device memory at ", Text(memory.address),
                           " were given; give at least one, and its address");
  if (memory.length > UINTPTR_MAX - reinterpret_cast<uintptr_t>(memory.address))
    return InvalidArgument(memory.length, " bytes of device memory at ", Text(memory.address),
                           " would end beyond the last address; correct the length");
  return Status::Ok();
}

void AddBlock(DeviceMemory& all, const Block& block, const Attributes& found) {
  const Exportable how = HowOf(found);
  if (all.blocks.empty()) all.exportable = how;
  if (how == Exportable::kNo) all.why_not = WhyNot(found);
  if (how != all.exportable && all.exportable != Exportable::kNo) {
    all.exportable = Exportable::kNo;
    if (how != Exportable::kNo) all.why_not = "mappings of several handle types";
  }
  all.blocks.push_back(block);
}

}  // namespace

Result<DeviceMemory> Describe(const Context& context, const Memory& memory) {
  WC_RETURN_IF_ERROR(CheckBytes(memory, context.ordinal()));
  const ContextScope scope(context);
  WC_RETURN_IF_ERROR(scope.status());
  DeviceMemory described;
  Identity identity;
  Attributes found;
  for (Walk walk(context, {memory.address, memory.length}); !walk.done();) {
    WC_ASSIGN_OR_RETURN(const Block block, walk.Next(found));
    AddBlock(described, block, found);
    identity.Add(block.identity);
  }
  const Block& first = described.blocks.front();
  const Block& last = described.blocks.back();
  described.memory = {
      .kind = MemoryKind::kDevice,
      .device = context.uuid(),
      .ordinal = context.ordinal(),
      .address = memory.address,
      .length = memory.length,
      .allocation = {first.address, static_cast<size_t>(last.address + last.length - first.address),
                     identity.value()}};
  return described;
}

Result<uint64_t> IdentityOf(const Context& context, std::span<const std::byte> bytes) {
  const ContextScope scope(context);
  WC_RETURN_IF_ERROR(scope.status());
  Identity identity;
  Attributes found;
  for (Walk walk(context, bytes); !walk.done();) {
    WC_ASSIGN_OR_RETURN(const Block block, walk.Next(found));
    identity.Add(block.identity);
  }
  return identity.value();
}

Result<Memory> Recognise(const Gpus& gpus, std::span<std::byte> bytes) {
  WC_RETURN_IF_ERROR(gpus.Usable());
  WC_ASSIGN_OR_RETURN(const Attributes found, AttributesOf(gpus.cuda(), bytes.data()));
  if (found.type != drivers::CU_MEMORYTYPE_DEVICE) return HostMemory(bytes);
  WC_RETURN_IF_ERROR(CheckAttributes(found, found.ordinal, bytes.data()));
  return Memory{
      .kind = MemoryKind::kDevice, .device = found.ordinal, .address = bytes.data(), .length = bytes.size()};
}

}  // namespace weightcast::device
