#include "base/strings.h"
#include "memory/memory.h"

namespace weightcast {

Status CheckMemory(const Memory& memory) {
  const auto bad = [](std::string message) { return Status(Code::kInvalidArgument, std::move(message)); };
  switch (memory.kind) {
    case MemoryKind::kDevice:
      if (memory.device < 0)
        return bad(
            StrCat("device memory names device ", memory.device, "; give the number of one, from 0 on"));
      break;
    case MemoryKind::kHost:
      break;
    default:
      return bad(
          StrCat("memory of the unknown kind ", static_cast<int>(memory.kind), "; use kHost or kDevice"));
  }
  if (memory.kind == MemoryKind::kHost && memory.device != -1)
    return bad(StrCat("host memory names device ", memory.device, "; its device must be -1"));
  if (memory.address == nullptr && memory.length > 0)
    return bad(StrCat(memory.length, " bytes at a null pointer; allocate them first"));
  if (memory.length > UINTPTR_MAX - reinterpret_cast<uintptr_t>(memory.address))
    return bad(StrCat(memory.length, " bytes would end beyond the last address; correct the length"));
  return Status::Ok();
}

}  // namespace weightcast
