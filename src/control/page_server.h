#pragma once

#include <memory>
#include <string>

#include "control/page_state.h"
#include "control/token.h"
#include "weightcast/status.h"

namespace weightcast::control {

/// What `weightcast controller --http` serves (docs/http.md): the page, its JSON and events, /metrics and
/// /healthz. One thread, `wc-http`; it reads PageState and asks the deciding thread for nothing but metrics.
class PageServer {
 public:
  /// `where`: "host:port", port 0: any. Beyond loopback clients need the observer's token. Errors:
  /// kInvalidArgument; kPermission where that token cannot be demanded as the user has configured none;
  /// kUnavailable when the port is taken; kExhausted.
  static Result<std::unique_ptr<PageServer>> Start(const std::string& where, const Token& token,
                                                   std::shared_ptr<PageState> state);
  virtual ~PageServer() = default;
  [[nodiscard]] virtual std::string address() const = 0;
};

}  // namespace weightcast::control
