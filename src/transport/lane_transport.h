#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "base/advice.h"
#include "base/log.h"
#include "base/strings.h"
#include "transport/grant_table.h"
#include "transport/registry.h"
#include "transport/transport.h"

namespace weightcast::transport {

/// What is the same in transports whose links consist of lanes: `Self` has kName, registry_, commands_,
/// regions_, links_ and events_, and Run for the commands that are its own.
template <typename Self>
class LaneTransport : public Transport {
 public:
  void Deregister(uint32_t region) final { self().registry_.Deregister(region); }
  Result<RemoteRegion> Import(LinkId link, const RegionName& name, uint64_t length,
                              std::string_view key) final {
    return self().registry_.Import(link, name, length, key);
  }
  void Release(LinkId link, RemoteRegion region) final {
    RunCommands();
    auto* const found = Find(link);
    if (found != nullptr && found->imports().Remove(region)) self().registry_.FreeImport(link, region);
  }
  [[nodiscard]] std::string Describe(LinkId link) const final {
    const auto* const found = Find(link);
    return found == nullptr ? StrCat(Self::kName, ": closed") : found->Describe();
  }
  Status OpenGrant(LinkId link, const GrantName& grant, GrantReach ranges) final {
    auto* const found = Find(link);
    if (found == nullptr)
      return {Code::kUnavailable, "the link is closed; see the peer's log, connect again"};
    return found->OpenGrant(grant, std::move(ranges));
  }
  void Revoke(LinkId link, const GrantName& grant) final {
    if (GrantTable::IsStanding(grant)) {
      WC_LOG(kError, Self::kName,
             ": a region that peers may write at any time was asked to end its grant, which has no effect",
             kReportBug);
      return;
    }
    if (auto* const found = Find(link); found != nullptr) return found->Revoke(grant);
    self().events_.Push(Revoked{link, grant});  // With its link every grant is over.
  }
  size_t Post(LinkId link, uint32_t lane, std::span<const Op> ops) final {
    RunCommands();
    auto* const found = Find(link);
    return found == nullptr ? 0 : found->Post(lane, ops);
  }

 protected:
  [[nodiscard]] auto* Find(LinkId link) const {
    const auto found = self().links_.find(link);
    return found == self().links_.end() ? nullptr : found->second.get();
  }
  /// Whether a link may be opened under this id.
  [[nodiscard]] Status CheckFree(LinkId link) const {
    if (link != LinkId{} && !self().links_.contains(link)) return Status::Ok();
    return Error(Code::kInvalidArgument, "link id ", static_cast<uint32_t>(link), " is 0 or in use",
                 kReportBug);
  }
  static Status NoSuchLink(LinkId link) {
    return Error(Code::kInvalidArgument, Self::kName, ": there is no link ", static_cast<uint32_t>(link),
                 kReportBug);
  }
  void RunCommands() {
    if (!self().registry_.commands().pending()) return;
    auto commands = std::move(self().commands_);
    self().registry_.commands().Take(commands);
    for (auto& command : commands) std::visit([this](auto& one) { self().Run(one); }, command);
    self().commands_ = std::move(commands);  // Its memory serves again.
  }
  void Run(const RemoveRegion& removed) {
    auto* const retired = self().regions_.Retire(removed.id);
    if (retired == nullptr) return;
    for (const auto& [id, link] : self().links_) link->Forget(*retired);
    self().regions_.Unuse(*retired);
  }
  template <typename Imported>
  void Run(AddImport<Imported>& import) {
    if (auto* const found = Find(import.link); found != nullptr)
      found->imports().Add(import.index, std::move(import.region));
  }

 private:
  friend Self;
  LaneTransport() = default;
  [[nodiscard]] Self& self() { return static_cast<Self&>(*this); }
  [[nodiscard]] const Self& self() const { return static_cast<const Self&>(*this); }
};

}  // namespace weightcast::transport
