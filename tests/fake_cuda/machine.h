#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "fake_cuda/addresses.h"
#include "fake_cuda/config.h"
#include "fake_cuda/dmabuf.h"
#include "fake_cuda/messages.h"

namespace weightcast::fake_cuda {

// Results of a request that a correct program never makes.
inline constexpr int32_t kOpenElsewhere = -1;
inline constexpr int32_t kOpenedAtHome = -2;

/// One piece of device memory, or of host memory that cuMemHostAlloc gave. It stays while something refers to
/// it: a mapping, a handle, an exported descriptor.
struct PhysicalMemory {
  uint64_t id = 0;
  int gpu = 0;
  int owner = 0;  ///< The client that made it.
  MemoryKind kind{};
  uint64_t length = 0;  ///< Whole pages.
  uint64_t skew = 0;    ///< Where the allocation begins in it.
  uint64_t bytes = 0;   ///< Of the allocation.
  uint64_t types = 0;
  int fd = -1;
  uint64_t references = 0;
  bool shared = false;  ///< Its legacy handle was given out.
};

/// Such memory at an address of one client.
struct Mapping {
  int client = 0;
  uint64_t length = 0;
  std::shared_ptr<PhysicalMemory> memory;
  bool open = false;      ///< A device may touch it.
  bool reserved = false;  ///< Its addresses belong to a reservation.
};

struct Client {
  int id = 0;
  int pid = 0;
  Area* area = nullptr;
  bool dead = false;
  std::chrono::steady_clock::time_point ends;  ///< Of the dead: when its copies stop.
  std::map<uint64_t, uint64_t> reservations;
  std::vector<std::shared_ptr<PhysicalMemory>> handles;
};

/// The memory of all devices, and who has it. One thread.
class Machine {
 public:
  explicit Machine(Config config);
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;
  ~Machine();

  Client& Join(int pid, Area* area);
  /// Releases all it has. Its streams must not run any more.
  void Leave(int client);
  /// A request about memory. `fd` is the caller's before and the client's after.
  Reply Serve(Client& client, const Request& request, int& fd);
  FakeCudaLive Live(int pid);

  std::map<int, std::unique_ptr<Client>>& clients() { return clients_; }
  Config& config() { return config_; }
  [[nodiscard]] bool inlined() const { return config_.dir.empty(); }
  /// The device whose memory lies at this address; -1: host memory.
  [[nodiscard]] int GpuAt(uint64_t address) const;
  /// Whether this process has the memory at this address; else it is only its client's.
  [[nodiscard]] bool Sees(uint64_t address) const {
    return inlined() || IsDevice(address) || IsPinned(address);
  }
  /// Where this process reaches memory that a client knows at `address`.
  [[nodiscard]] std::byte* See(uint64_t address) const {
    return reinterpret_cast<std::byte*>(inlined() && IsDevice(address) ? address + kAlias : address);
  }
  /// Inline: device memory at its clients' addresses too, while a kernel runs.
  void Expose(bool exposed);

 private:
  struct Export {
    std::shared_ptr<PhysicalMemory> memory;
    int fd;
    uint64_t inode;
  };
  std::shared_ptr<PhysicalMemory> Make(Client& client, MemoryKind kind, int gpu, uint64_t bytes,
                                       uint64_t skew);
  void Poison(const PhysicalMemory& memory) const;
  void Refer(const std::shared_ptr<PhysicalMemory>& memory);
  void Unrefer(std::shared_ptr<PhysicalMemory> memory);
  void Map(Client& client, uint64_t address, const std::shared_ptr<PhysicalMemory>& memory, bool reserved);
  void Unmap(uint64_t address);
  void SetOpen(uint64_t address, bool open);
  void CollectExports();
  /// Forgets the dma-bufs that are closed everywhere.
  void CollectDmaBufs();
  void CountTorn(const PhysicalMemory& memory);
  Reply ExportDmaBuf(const Request& request, int& fd);
  std::map<uint64_t, Mapping>::iterator Find(uint64_t address);
  [[nodiscard]] std::shared_ptr<PhysicalMemory> MemoryOf(uint64_t id) const;
  [[nodiscard]] uint64_t UsedOf(int gpu) const;

  Reply Alloc(Client& client, const Request& request, int& fd);
  Reply Free(Client& client, uint64_t address);
  Reply Create(Client& client, const Request& request);
  Reply ExportMemory(uint64_t id, int& fd);
  Reply Import(Client& client, const Request& request, int fd);
  Reply Share(uint64_t address);
  Reply Open(Client& client, const Request& request);

  Config config_;
  Addresses addresses_;
  std::map<int, std::unique_ptr<Client>> clients_;
  std::map<uint64_t, Mapping> mappings_;
  std::map<uint64_t, std::shared_ptr<PhysicalMemory>> memories_;
  std::vector<Export> exports_;
  struct DmaBuf {
    std::vector<std::shared_ptr<PhysicalMemory>> memories;
    int watch = -1;
  };
  std::vector<DmaBuf> dmabufs_;
  uint64_t torn_ = 0;
  int next_client_ = 1;
  uint64_t next_memory_ = 1;
};

}  // namespace weightcast::fake_cuda
