#pragma once

#include "contract/side.h"
#include "transport/tcp/factory.h"

namespace weightcast::transport {

inline constexpr TransportFactory kTcp{"tcp", &CreateTcpTransport};

inline Settings WithLanes(int64_t lanes) {
  Settings settings = TestSettings();
  settings.lanes = lanes;
  return settings;
}

}  // namespace weightcast::transport
