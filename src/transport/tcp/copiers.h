#pragma once

#include "device/engines.h"
#include "transport/tcp/staging.h"
#include "weightcast/status.h"

namespace weightcast::transport::tcp {

/// The engines of one link, and the blocks that they copy from and to.
class Copiers : public device::Engines {
 public:
  using Engines::Engines;
  device::Engine& From(const StagedDevice& device) { return Of(device.device); }
  /// In order: what a lane writes twice ends as it was written last.
  device::Engine& To(const StagedDevice& device) { return Of(device.device, Order::kOneByOne); }
  /// Its failure is one of the link's from now on.
  void UseBlocksOf(const Staging& staging) { staging_ = &staging; }
  /// The first failure of an engine, or of the blocks.
  [[nodiscard]] Status failure() const {
    WC_RETURN_IF_ERROR(Engines::failure());
    return staging_ == nullptr ? Status::Ok() : staging_->failure();
  }

 private:
  const Staging* staging_ = nullptr;
};

}  // namespace weightcast::transport::tcp
