#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <random>
#include <vector>

#include "fake_cuda/access.h"
#include "fake_cuda/machine.h"

namespace weightcast::fake_cuda {

/// Runs the streams of all clients, piece by piece. One thread.
class Engine {
 public:
  explicit Engine(Machine& machine);

  /// One piece of one stream. False: nothing can run just now.
  bool Step();
  /// When the first of the streams that pause goes on; the past where none pauses.
  [[nodiscard]] std::chrono::steady_clock::time_point NextDue() const { return next_due_; }
  /// The client has no copy under way or to come.
  [[nodiscard]] bool Idle(const Client& client) const;
  /// Ends the streams of a client that leaves, in the middle of what they do.
  void Forget(const Client& client);

  /// Requests about the order of things and about faults.
  Reply Serve(const Request& request);
  void Seed(uint64_t seed) { random_.seed(seed); }
  void Lose(int pid, int gpu, int error);

 private:
  struct Choice {
    Client* client;
    size_t stream;
  };
  struct Loss {
    int pid;
    int gpu;
    int error;
    uint64_t at;
  };
  using Key = std::pair<int, size_t>;

  std::vector<Choice> Runnable();
  bool Blocked(const Client& client, const Ring& ring) const;
  void RunPiece(const Choice& choice);
  size_t PickInBatch(Ring& ring, uint64_t head, uint64_t tail);
  bool RunOp(Client& client, Ring& ring, Op& op);
  bool CopyPiece(Client& client, const Ring& ring, Op& op);
  bool Set(Client& client, Op& op);
  void WriteValue(Client& client, const Op& op);
  bool RunKernelOp(Ring& ring, const Op& op);
  [[nodiscard]] bool Garbage(int gpu, uint64_t to, uint64_t from) const;
  Access Fetch(const Client& client, uint64_t from, size_t length);
  Access Store(const Client& client, uint64_t to, size_t length);
  void Retire(Client& client, Ring& ring);
  void ApplyLosses();
  void SetFault(const Request& request);
  uint64_t Below(uint64_t limit) { return random_() % limit; }

  Machine& machine_;
  std::mt19937_64 random_;
  bool held_[kMaxGpus]{};
  uint32_t delay_us_;
  std::map<Key, std::chrono::steady_clock::time_point> pauses_;
  std::chrono::steady_clock::time_point next_due_{};
  std::vector<Loss> losses_;
  uint64_t pieces_ = 0;
  std::vector<Choice> runnable_;
  std::byte buffer_[kPiece]{};
};

}  // namespace weightcast::fake_cuda
