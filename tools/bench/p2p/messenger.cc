#include "tools/bench/p2p/messenger.h"

#include <deque>
#include <utility>

namespace weightcast::tools {
namespace {

constexpr double kMessengerSeconds = 60;
constexpr uint64_t kReceivesAhead = 16;  ///< Fewer than a connection has grants.

std::vector<MessagePiece> MessageOf(const PartyWork& work, uint64_t begin, uint64_t slot) {
  std::vector<MessagePiece> pieces;
  for (uint64_t i = 0; i < work.iovs; ++i)
    pieces.push_back({begin + slot * work.stride() + 2 * i * work.piece_bytes, work.piece_bytes});
  return pieces;
}

}  // namespace

Result<std::unique_ptr<P2pMessenger>> P2pMessenger::Make(const Settings& settings, const std::string& token,
                                                         uint32_t number, std::span<std::byte> memory) {
  p2p::EngineOptions options;
  options.rank = number;
  options.token = token;
  options.settings = settings;
  WC_ASSIGN_OR_RETURN(auto engine, p2p::Engine::Create(std::move(options)));
  std::unique_ptr<P2pMessenger> made(new P2pMessenger(std::move(engine), memory));
  WC_ASSIGN_OR_RETURN(made->memory_, made->engine_->Register(memory));
  return made;
}

Status P2pMessenger::Meet(std::string_view metadata) {
  WC_ASSIGN_OR_RETURN(const auto peer, p2p::ParseMetadata(metadata));
  WC_ASSIGN_OR_RETURN(channel_, engine_->Shared(peer, Clock::now() + FromSeconds(kMessengerSeconds), {}));
  return Status::Ok();
}

std::vector<p2p::LocalSlice> P2pMessenger::LocalsOf(std::span<const MessagePiece> pieces) const {
  std::vector<p2p::LocalSlice> locals;
  locals.reserve(pieces.size());
  for (const auto& [offset, length] : pieces) locals.push_back({memory_, bytes_.data() + offset, length});
  return locals;
}

Result<uint64_t> P2pMessenger::Send(std::span<const MessagePiece> pieces) const {
  return engine_->Send(channel_, LocalsOf(pieces));
}
Result<uint64_t> P2pMessenger::Receive(std::span<const MessagePiece> pieces) const {
  return engine_->Receive(channel_, LocalsOf(pieces));
}
Status P2pMessenger::Wait(uint64_t operation) const { return engine_->Wait(operation, {}); }

Result<std::string> P2pMessenger::RunSends(const PartyWork& work) const {
  PartyTimes times;
  const MessagePiece wake{bytes_.size() - 64, 8};
  WC_ASSIGN_OR_RETURN(const uint64_t first, Send({&wake, 1}));
  WC_RETURN_IF_ERROR(Wait(first));
  int64_t last = times.begin = NowNanoseconds();
  for (uint64_t i = 0; i < work.repeats * work.slots; ++i) {
    WC_ASSIGN_OR_RETURN(const uint64_t send, Send(MessageOf(work, work.from, i % work.slots)));
    WC_RETURN_IF_ERROR(Wait(send));
    const int64_t now = NowNanoseconds();
    times.transfers.push_back(now - last);
    last = now;
  }
  times.end = last;
  return EncodeStruct(times);
}

Result<std::string> P2pMessenger::RunReceives(const PartyWork& work) const {
  const MessagePiece wake{bytes_.size() - 64, 8};
  WC_ASSIGN_OR_RETURN(const uint64_t first, Receive({&wake, 1}));
  const uint64_t all = work.repeats * work.slots;
  std::deque<uint64_t> posted{first};
  for (uint64_t i = 0; i < all || !posted.empty();) {
    for (; i < all && posted.size() < kReceivesAhead; ++i) {
      WC_ASSIGN_OR_RETURN(const uint64_t next, Receive(MessageOf(work, work.to, i % work.slots)));
      posted.push_back(next);
    }
    WC_RETURN_IF_ERROR(Wait(posted.front()));
    posted.pop_front();
  }
  return std::string();
}

}  // namespace weightcast::tools
