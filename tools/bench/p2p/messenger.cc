#include "tools/bench/p2p/messenger.h"

#include <utility>

namespace weightcast::tools {
namespace {

constexpr double kMessengerSeconds = 60;

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

std::vector<p2p::Local> P2pMessenger::LocalsOf(std::span<const MessagePiece> pieces) const {
  std::vector<p2p::Local> locals;
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

}  // namespace weightcast::tools
