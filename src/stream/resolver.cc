#include "stream/resolver.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "base/strings.h"
#include "base/thread.h"

namespace weightcast::stream {

Result<Resolver> Resolver::Create() {
  Resolver resolver;
  resolver.shared_ = std::make_shared<Shared>();
  WC_ASSIGN_OR_RETURN(resolver.shared_->wake, WakeFd::Create());
  return resolver;
}

void Resolver::Shared::Finish(uint64_t number, Result<Addresses> found) {
  const std::lock_guard lock(mutex);
  if (number != wanted) return;
  outcome = std::move(found);
  wake.Wake();
}

Status Resolver::Start(const std::string& host, uint16_t port) {
  Forget();
  const uint64_t number = shared_->wanted;
  const std::string text =
      host.find(':') == std::string::npos ? StrCat(host, ":", port) : StrCat("[", host, "]:", port);
  if (auto address = SocketAddress::Parse(text); address.ok() && address->family() != AF_UNIX) {
    shared_->Finish(number, Addresses{*address});
    return Status::Ok();
  }
  // Not joined: a name server that is silent would hold whoever waits for it.
  WC_ASSIGN_OR_RETURN(std::thread thread, StartThread("wc-resolve", [shared = shared_, host, port, number] {
                        shared->Finish(number, Resolve(host, port));
                      }));
  thread.detach();
  return Status::Ok();
}

std::optional<Result<Resolver::Addresses>> Resolver::Take() {
  const std::lock_guard lock(shared_->mutex);
  shared_->wake.Drain();
  return std::exchange(shared_->outcome, std::nullopt);
}

void Resolver::Forget() {
  if (shared_ == nullptr) return;  // It was never made: no descriptors.
  const std::lock_guard lock(shared_->mutex);
  ++shared_->wanted;
  shared_->outcome.reset();
}

}  // namespace weightcast::stream
