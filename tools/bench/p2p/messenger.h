#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "p2p/engine.h"
#include "tools/bench/p2p/messages.h"
#include "weightcast/settings.h"
#include "weightcast/status.h"

namespace weightcast::tools {

/// Bytes of the memory that messages are sent from and received into.
struct MessagePiece {
  uint64_t offset = 0;
  uint64_t length = 0;
};

/// A party's end of send and recv.
class P2pMessenger {
 public:
  /// `memory` outlives it.
  static Result<std::unique_ptr<P2pMessenger>> Make(const Settings& settings, const std::string& token,
                                                    uint32_t number, std::span<std::byte> memory);
  /// What the other party's Meet needs.
  [[nodiscard]] std::string metadata() const { return p2p::Encode(engine_->metadata()); }
  Status Meet(std::string_view metadata);
  /// One message after the other, which a first one wakes. PartyTimes, encoded.
  [[nodiscard]] Result<std::string> RunSends(const PartyWork& work) const;
  /// Some are posted ahead, as those do who want speed. Returns nothing.
  [[nodiscard]] Result<std::string> RunReceives(const PartyWork& work) const;

 private:
  P2pMessenger(std::unique_ptr<p2p::Engine> engine, std::span<std::byte> memory)
      : engine_(std::move(engine)), bytes_(memory) {}
  Result<uint64_t> Send(std::span<const MessagePiece> pieces) const;
  Result<uint64_t> Receive(std::span<const MessagePiece> pieces) const;
  Status Wait(uint64_t operation) const;
  [[nodiscard]] std::vector<p2p::LocalSlice> LocalsOf(std::span<const MessagePiece> pieces) const;

  std::unique_ptr<p2p::Engine> engine_;
  std::span<std::byte> bytes_;
  uint64_t memory_ = 0;
  uint64_t channel_ = 0;
};

}  // namespace weightcast::tools
