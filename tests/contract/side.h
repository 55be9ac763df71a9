#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "memory/memory.h"
#include "transport/transport.h"
#include "weightcast/clock.h"
#include "weightcast/memory.h"

namespace weightcast::transport {

/// Ends the process with a message: works in a forked child, where gtest's assertions are not heard.
void Require(bool condition, std::string_view what);

/// How long the suite waits for what must come; far more than it takes.
inline constexpr Duration kPatience = std::chrono::seconds(60);

/// Device memory for the suite, reached through the driver alone: contract/devices.h.
class TestDevices {
 public:
  virtual ~TestDevices() = default;
  /// Those that this process uses now; nullptr: none.
  static TestDevices* current() { return current_; }
  /// Of each device in turn. Not `exportable`: as vLLM's sleep mode makes it, which no other process maps.
  virtual Memory Allocate(size_t size, bool exportable) = 0;
  virtual void Free(const Memory& memory) = 0;
  virtual void Write(const Memory& memory, size_t offset, std::span<const std::byte> bytes) = 0;
  virtual void Read(const Memory& memory, size_t offset, std::span<std::byte> bytes) = 0;
  virtual void Set(const Memory& memory, size_t offset, std::byte value, size_t length) = 0;

 protected:
  static TestDevices* current_;
};

enum class TestPlace : uint8_t {
  kPrivate,   ///< Ordinary memory.
  kShared,    ///< From Allocate.
  kDevice,    ///< Of one of TestDevices::current().
  kSecluded,  ///< The same; no process can export it.
};

inline bool IsDevice(TestPlace place) { return place == TestPlace::kDevice || place == TestPlace::kSecluded; }

/// Memory of a test.
class TestMemory {
 public:
  TestMemory(size_t size, bool shared)
      : TestMemory(size, shared ? TestPlace::kShared : TestPlace::kPrivate) {}
  TestMemory(size_t size, TestPlace place);
  TestMemory(TestMemory&& other) noexcept;
  TestMemory& operator=(TestMemory&&) = delete;
  ~TestMemory();

  [[nodiscard]] size_t size() const { return memory_.length; }
  /// Of host memory.
  [[nodiscard]] std::span<std::byte> bytes() const { return bytes_; }
  [[nodiscard]] DescribedMemory memory() const { return memory_; }
  /// What stands there now; of device memory a copy that is valid until the next Read.
  [[nodiscard]] std::span<const std::byte> Read(size_t offset, size_t length) const;
  [[nodiscard]] std::span<const std::byte> Read() const { return Read(0, size()); }
  [[nodiscard]] std::span<const std::byte> ReadLast(size_t length) const {
    return Read(size() - length, length);
  }
  /// Position-dependent bytes that differ for each seed.
  void Fill(uint64_t seed) const;
  /// Every byte the same; and whether it still is so. Fast also where nothing is optimised.
  void Wipe() const { Wipe(size()); }
  /// The first `length` bytes.
  void Wipe(size_t length) const;
  [[nodiscard]] bool Wiped() const;
  static constexpr std::byte kWiped{0x5a};

 private:
  [[nodiscard]] bool on_device() const { return memory_.kind == MemoryKind::kDevice; }
  [[nodiscard]] Memory given() const;

  std::shared_ptr<SharedBuffer> buffer_;
  std::unique_ptr<std::byte[]> owned_;
  std::span<std::byte> bytes_;
  DescribedMemory memory_;
  mutable std::vector<std::byte> read_;
};

bool SameBytes(std::span<const std::byte> x, std::span<const std::byte> y);

/// What a peer needs to know of a region.
struct Described {
  RegionName name;
  uint64_t length = 0;
  std::string key;
};

/// One transport object and all that its events have told. Checks at every event what the contract
/// promises of all of them: known cookies, one completion each, nothing after LinkClosed.
class Side {
 public:
  explicit Side(const TransportFactory& factory);
  Side(const TransportFactory& factory, const Settings& settings);

  [[nodiscard]] Transport& transport() const { return *transport_; }
  [[nodiscard]] Incarnation self() const { return self_; }

  Described Register(const TestMemory& memory, Access access);
  /// Under a given id and generation.
  Described RegisterAs(uint32_t id, uint32_t generation, const TestMemory& memory, Access access);
  RemoteRegion Import(LinkId link, const Described& region);

  /// One call of Progress; how many events it gave.
  size_t Pump();
  /// Posts, pumping while the transport is full. Fills in the cookie and returns it.
  uint64_t Post(LinkId link, uint32_t lane, Op op);
  /// Posts what fits now; fills in cookies; how many were taken.
  size_t TryPost(LinkId link, uint32_t lane, std::vector<Op>& ops);

  [[nodiscard]] bool Completed(uint64_t cookie) const { return completions.contains(cookie); }
  [[nodiscard]] size_t pending() const { return pending_.size(); }
  void Forget();  ///< Drops what was recorded; what is pending stays.

  bool last_moved = false;  ///< What the last Pump said.
  /// The peer, where it is driven by this thread too: Post drives it while the transport is full.
  Side* partner = nullptr;

  std::map<uint64_t, Completion> completions;
  std::vector<SignalArrived> signals;
  std::map<LinkId, uint32_t> ready;  ///< Number of lanes.
  std::map<LinkId, Status> down;
  std::vector<LaneDown> lanes_down;
  std::vector<LaneUp> lanes_up;
  std::set<LinkId> closed;
  std::vector<GrantName> revoked;
  std::set<uint32_t> deregistered;

 private:
  void Take(Event& event);

  Incarnation self_;
  std::unique_ptr<Transport> transport_;
  std::map<uint64_t, LinkId> pending_;  ///< Cookies of operations taken.
  std::vector<Event> events_;
  uint64_t last_cookie_ = 0;
  uint32_t last_region_ = 0;
  uint32_t last_generation_ = 0;
};

/// Pumps all sides until `done`, at most kPatience; whether it came.
bool PumpUntil(std::initializer_list<Side*> sides, const std::function<bool()>& done,
               Duration patience = kPatience);
/// Pumps for this long: for what must not happen.
void PumpFor(std::initializer_list<Side*> sides, Duration duration);

/// Two sides in one process and a link between them. The two name it differently on purpose.
struct Pair {
  explicit Pair(const TransportFactory& factory);
  /// Closes the link and drives both: one that is destroyed alone waits for the other.
  ~Pair();
  Pair(const TransportFactory& factory, const Settings& settings);
  /// Opens the link; whether it became ready on both sides.
  bool Connect();
  bool Until(const std::function<bool()>& done) { return PumpUntil({&a, &b}, done); }

  static constexpr LinkId kA{7};  ///< The link's id at a.
  static constexpr LinkId kB{9};  ///< The link's id at b.
  Side a;
  Side b;
};

/// Settings of the suite: a short lease.
Settings TestSettings();

}  // namespace weightcast::transport
