#include "fake_cuda/machine.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace weightcast::fake_cuda {
namespace {

using namespace drivers;  // NOLINT: the driver's names are its own.

constexpr uint64_t kMostPoisoned = 64 << 20;
constexpr int kPoison = 0xCD;
/// Small allocations do not begin at a page, as libcuda's do not.
constexpr uint64_t kSkew = 512;
constexpr uint64_t kSmall = 1 << 20;
constexpr int kReadWrite = PROT_READ | PROT_WRITE;

Reply Failed(int32_t result) { return {.result = result}; }

}  // namespace

Machine::Machine(Config config) : config_(std::move(config)) {}

Machine::~Machine() {
  while (!clients_.empty()) Leave(clients_.begin()->first);
  for (const Export& each : exports_) close(each.fd);
  for (const DmaBuf& each : dmabufs_) close(each.watch);
  for (const auto& [id, memory] : memories_) close(memory->fd);
}

Client& Machine::Join(int pid, Area* area) {
  auto client = std::make_unique<Client>();
  client->id = next_client_++;
  client->pid = pid;
  client->area = area;
  return *(clients_[client->id] = std::move(client));
}

void Machine::Leave(int id) {
  const auto found = clients_.find(id);
  for (auto each = mappings_.begin(); each != mappings_.end();) {
    const uint64_t address = each->first;
    const bool mine = each->second.client == id;
    ++each;
    if (mine) Unmap(address);
  }
  for (const auto& [address, length] : found->second->reservations) {
    addresses_.Give(id, false, address, length);
  }
  for (const auto& handle : found->second->handles) Unrefer(handle);
  addresses_.Forget(id);
  clients_.erase(found);
}

// --- Memory and mappings

std::shared_ptr<PhysicalMemory> Machine::Make(Client& client, MemoryKind kind, int gpu, uint64_t bytes,
                                              uint64_t skew) {
  auto memory = std::make_shared<PhysicalMemory>();
  memory->id = next_memory_++;
  memory->gpu = kind == MemoryKind::kHost ? -1 : gpu;
  memory->owner = client.id;
  memory->kind = kind;
  memory->length = RoundUp(bytes + skew, 4096);
  memory->skew = skew;
  memory->bytes = bytes;
  memory->fd = memfd_create("fake-cuda-memory", MFD_CLOEXEC);
  if (memory->fd < 0 || ftruncate(memory->fd, static_cast<off_t>(memory->length)) != 0) {
    Wrong("machine", std::string("no memory can be made: ") + std::strerror(errno));
  }
  Poison(*memory);
  memories_[memory->id] = memory;
  return memory;
}

void Machine::Poison(const PhysicalMemory& memory) const {
  if (memory.length > kMostPoisoned) return;
  void* const bytes = mmap(nullptr, memory.length, kReadWrite, MAP_SHARED, memory.fd, 0);
  if (bytes == MAP_FAILED) return;
  std::memset(bytes, kPoison, memory.length);
  munmap(bytes, memory.length);
}

void Machine::Refer(const std::shared_ptr<PhysicalMemory>& memory) { ++memory->references; }

void Machine::Unrefer(std::shared_ptr<PhysicalMemory> memory) {
  if (--memory->references > 0) return;
  close(memory->fd);
  memories_.erase(memory->id);
}

void Machine::Map(Client& client, uint64_t address, const std::shared_ptr<PhysicalMemory>& memory,
                  bool reserved) {
  const bool host = memory->kind == MemoryKind::kHost;
  if (!inlined() || !host) {
    MapAt(reinterpret_cast<uint64_t>(See(address)), memory->length, reserved ? PROT_NONE : kReadWrite,
          MAP_SHARED | MAP_FIXED_NOREPLACE, memory->fd);
  }
  mappings_[address] = {client.id, memory->length, memory, !reserved, reserved};
  Refer(memory);
}

void Machine::Unmap(uint64_t address) {
  const auto found = mappings_.find(address);
  const Mapping mapping = found->second;
  const bool host = mapping.memory->kind == MemoryKind::kHost;
  if (!inlined() || !host) UnmapAt(reinterpret_cast<uint64_t>(See(address)), mapping.length);
  mappings_.erase(found);
  if (!mapping.reserved) addresses_.Give(mapping.client, host, address, mapping.length);
  Unrefer(mapping.memory);
}

void Machine::SetOpen(uint64_t address, bool open) {
  Mapping& mapping = mappings_.at(address);
  mapping.open = open;
  ProtectAt(reinterpret_cast<uint64_t>(See(address)), mapping.length, open ? kReadWrite : PROT_NONE);
}

void Machine::Expose(bool exposed) {
  for (const auto& [address, mapping] : mappings_) {
    if (mapping.memory->kind == MemoryKind::kHost || !mapping.open) continue;
    if (exposed) {
      MapAt(address, mapping.length, kReadWrite, MAP_SHARED | MAP_FIXED, mapping.memory->fd);
    } else {
      MapAt(address, mapping.length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1);
    }
  }
}

std::map<uint64_t, Mapping>::iterator Machine::Find(uint64_t address) {
  auto after = mappings_.upper_bound(address);
  if (after == mappings_.begin()) return mappings_.end();
  --after;
  return address < after->first + after->second.length ? after : mappings_.end();
}

int Machine::GpuAt(uint64_t address) const {
  const auto found = const_cast<Machine*>(this)->Find(address);
  return found == mappings_.end() ? -1 : found->second.memory->gpu;
}

std::shared_ptr<PhysicalMemory> Machine::MemoryOf(uint64_t id) const {
  const auto found = memories_.find(id);
  return found == memories_.end() ? nullptr : found->second;
}

uint64_t Machine::UsedOf(int gpu) const {
  uint64_t used = 0;
  for (const auto& [id, memory] : memories_) {
    if (memory->gpu == gpu) used += RoundUp(memory->length, kGranularity);
  }
  return used;
}

// --- Requests

Reply Machine::Serve(Client& client, const Request& request, int& fd) {
  switch (request.kind) {
    case Ask::kAlloc:
      return Alloc(client, request, fd);
    case Ask::kFree:
    case Ask::kClose:
      return Free(client, request.a);
    case Ask::kReserve: {
      const uint64_t address = addresses_.Take(client.id, false, request.a);
      client.reservations[address] = request.a;
      return {.a = address};
    }
    case Ask::kUnreserve:
      client.reservations.erase(request.a);
      addresses_.Give(client.id, false, request.a, request.b);
      return {};
    case Ask::kCreate:
      return Create(client, request);
    case Ask::kRelease: {
      const auto memory = MemoryOf(request.a);
      client.handles.erase(std::ranges::find(client.handles, memory));
      Unrefer(memory);
      return {};
    }
    case Ask::kRetain:
      client.handles.push_back(MemoryOf(request.a));
      Refer(client.handles.back());
      return {};
    case Ask::kMap:
      Map(client, request.a, MemoryOf(request.b), true);
      return {};
    case Ask::kUnmap:
      CountTorn(*mappings_.at(request.a).memory);
      Unmap(request.a);
      return {};
    case Ask::kAccess:
      SetOpen(request.a, request.b != 0);
      return {};
    case Ask::kExport:
      return ExportMemory(request.a, fd);
    case Ask::kImport:
      return Import(client, request, fd);
    case Ask::kDmaBuf:
      return ExportDmaBuf(request, fd);
    case Ask::kShare:
      return Share(request.a);
    case Ask::kOpen:
      return Open(client, request);
    case Ask::kMemInfo: {
      CollectExports();
      const uint64_t total = config_.gib << 30;
      return {.a = total - UsedOf(request.gpu), .b = total};
    }
    default:
      Wrong("machine", "there is no request " + std::to_string(static_cast<uint32_t>(request.kind)));
  }
}

Reply Machine::Alloc(Client& client, const Request& request, int& fd) {
  const auto kind = static_cast<MemoryKind>(request.b);
  const bool host = kind == MemoryKind::kHost;
  const uint64_t skew = !host && request.a < kSmall ? kSkew : 0;
  CollectExports();
  const uint64_t needed = RoundUp(request.a + skew, kGranularity);
  if (!host && UsedOf(request.gpu) + needed > config_.gib << 30) return Failed(CUDA_ERROR_OUT_OF_MEMORY);
  const auto memory = Make(client, kind, request.gpu, request.a, skew);
  const uint64_t block = addresses_.Take(client.id, host, memory->length);
  Map(client, block, memory, false);
  if (host) fd = dup(memory->fd);
  return {.a = block + skew, .b = memory->id};
}

// Of an allocation of its own, or of a legacy handle that was opened.
Reply Machine::Free(Client& client, uint64_t address) {
  const auto found = Find(address);
  const auto memory = found->second.memory;
  if (memory->owner == client.id) {
    for (const auto& [other, mapping] : mappings_) {
      if (mapping.memory == memory && mapping.client != client.id) return Failed(kOpenElsewhere);
    }
  }
  CountTorn(*memory);
  Unmap(found->first);
  return {};
}

Reply Machine::Create(Client& client, const Request& request) {
  CollectExports();
  if (UsedOf(request.gpu) + request.a > config_.gib << 30) return Failed(CUDA_ERROR_OUT_OF_MEMORY);
  const auto memory = Make(client, MemoryKind::kCreated, request.gpu, request.a, 0);
  memory->types = request.b;
  client.handles.push_back(memory);
  Refer(memory);
  return {.a = memory->id};
}

// A pipe stands for the memory: the machine sees when the last copy of the descriptor is closed.
Reply Machine::ExportMemory(uint64_t id, int& fd) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return Failed(CUDA_ERROR_OUT_OF_MEMORY);
  struct stat about{};
  fstat(ends[1], &about);
  const auto memory = MemoryOf(id);
  Refer(memory);
  exports_.push_back({memory, ends[0], about.st_ino});
  fd = ends[1];
  return {};
}

Reply Machine::ExportDmaBuf(const Request& request, int& fd) {
  DmaBuf made;
  std::vector<DmaBufPart> parts;
  for (uint64_t done = 0; done < request.b;) {
    const auto found = Find(request.a + done);
    if (found == mappings_.end()) return Failed(CUDA_ERROR_INVALID_VALUE);
    const uint64_t offset = request.a + done - found->first;
    const uint64_t length = std::min(found->second.length - offset, request.b - done);
    parts.push_back({.fd = found->second.memory->fd, .offset = offset, .length = length});
    made.memories.push_back(found->second.memory);
    done += length;
  }
  fd = MakeDmaBuf(parts, made.watch);
  if (fd < 0) return Failed(CUDA_ERROR_OUT_OF_MEMORY);
  for (const auto& memory : made.memories) Refer(memory);
  dmabufs_.push_back(std::move(made));
  return {};
}

void Machine::CollectDmaBufs() {
  std::erase_if(dmabufs_, [&](const DmaBuf& each) {
    pollfd entry{.fd = each.watch, .events = 0, .revents = 0};
    if (poll(&entry, 1, 0) != 1 || (entry.revents & POLLHUP) == 0) return false;
    close(each.watch);
    for (const auto& memory : each.memories) Unrefer(memory);
    return true;
  });
}

/// The kernel would keep the memory. The program that frees it believes that nobody reaches it any more.
void Machine::CountTorn(const PhysicalMemory& memory) {
  CollectDmaBufs();
  for (const DmaBuf& each : dmabufs_) {
    for (const auto& kept : each.memories) torn_ += kept.get() == &memory ? 1 : 0;
  }
}

void Machine::CollectExports() {
  CollectDmaBufs();
  std::erase_if(exports_, [&](const Export& each) {
    pollfd entry{.fd = each.fd, .events = 0, .revents = 0};
    if (poll(&entry, 1, 0) != 1 || (entry.revents & POLLHUP) == 0) return false;
    close(each.fd);
    Unrefer(each.memory);
    return true;
  });
}

Reply Machine::Import(Client& client, const Request& request, int fd) {
  std::shared_ptr<PhysicalMemory> memory;
  if (fd >= 0) {
    struct stat about{};
    fstat(fd, &about);
    const auto found = std::ranges::find(exports_, about.st_ino, &Export::inode);
    if (S_ISFIFO(about.st_mode) && found != exports_.end()) memory = found->memory;
  } else if (memory = MemoryOf(request.a); memory != nullptr) {
    if ((memory->types & CU_MEM_HANDLE_TYPE_FABRIC) == 0) memory = nullptr;
  }
  // A foreign descriptor is no error of its own to libcuda.
  if (memory == nullptr) return Failed(fd >= 0 ? CUDA_ERROR_UNKNOWN : CUDA_ERROR_INVALID_VALUE);
  client.handles.push_back(memory);
  Refer(memory);
  return {.gpu = memory->gpu, .a = memory->id, .b = memory->length, .c = memory->types};
}

Reply Machine::Share(uint64_t address) {
  const auto found = Find(address);
  found->second.memory->shared = true;
  return {.a = found->second.memory->id};
}

Reply Machine::Open(Client& client, const Request& request) {
  const auto memory = MemoryOf(request.a);
  if (memory == nullptr || !memory->shared) return Failed(CUDA_ERROR_INVALID_VALUE);
  if (memory->owner == client.id) return Failed(kOpenedAtHome);
  const auto owner = clients_.find(memory->owner);
  if (owner == clients_.end() || owner->second->dead) return Failed(CUDA_ERROR_INVALID_VALUE);
  if (config_.peer[request.gpu][memory->gpu] == Peer::kRefused) {
    return Failed(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
  }
  const uint64_t block = addresses_.Take(client.id, false, memory->length);
  Map(client, block, memory, false);
  return {.gpu = memory->gpu, .a = block + memory->skew, .b = memory->bytes};
}

FakeCudaLive Machine::Live(int pid) {
  CollectExports();
  FakeCudaLive live{};
  for (const auto& [id, client] : clients_) {
    if (pid >= 0 && client->pid != pid) continue;
    ++live.processes;
    for (const Ring& ring : client->area->rings) {
      if (ring.state.load(std::memory_order_acquire) != StreamState::kFree) ++live.streams;
    }
  }
  const auto counts = [&](int client) {
    const auto found = clients_.find(client);
    return pid < 0 || (found != clients_.end() && found->second->pid == pid);
  };
  for (const auto& [id, memory] : memories_) {
    if (!counts(memory->owner)) continue;
    ++live.memories;
    if (memory->gpu >= 0) live.bytes += memory->length;
  }
  for (const auto& [address, mapping] : mappings_) live.mappings += counts(mapping.client) ? 1 : 0;
  for (const Export& each : exports_) live.exported += counts(each.memory->owner) ? 1 : 0;
  for (const DmaBuf& each : dmabufs_) live.dmabufs += counts(each.memories.front()->owner) ? 1 : 0;
  live.torn = torn_;
  return live;
}

}  // namespace weightcast::fake_cuda
