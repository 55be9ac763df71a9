#pragma once

#include <functional>
#include <memory>
#include <string>

#include "peertest/data_link.h"
#include "peertest/echo_responder.h"
#include "peertest/messages.h"
#include "stream/token.h"
#include "transport/verbs/device_probe.h"
#include "weightcast/settings.h"
#include "weightcast/status.h"

namespace weightcast::peertest {

/// What this host does for the one test that it takes part in. Calls block, each for a bounded time; one
/// thread's.
class Session {
 public:
  struct Options {
    Settings settings = {};
    stream::MasterToken master;
    std::string peer = {};  ///< The asking host's address, numeric: nobody else is connected to or answered.
    std::function<bool()> interrupted = {};
  };
  explicit Session(Options options) : options_(std::move(options)) {}

  Result<Reply> Answer(const Request& request);
  /// What AskOrder has brought: JSON of PeerFacts.
  [[nodiscard]] const std::string& report() const { return report_; }

 private:
  Result<Reply> On(const AskBegin& ask);
  Result<Reply> On(const AskReach& ask);
  Result<Reply> On(const AskOpen& ask);
  Result<Reply> On(const AskMeet& ask);
  Result<Reply> On(const AskPong& ask);
  Result<Reply> On(const AskWrite& ask);
  Result<Reply> On(const AskShut& ask);
  static Result<Reply> On(const AskCounters& ask);
  Result<Reply> On(const AskDevice& ask);
  Result<Reply> On(const AskDeviceMeet& ask);
  Result<Reply> On(const AskDevicePong& ask);
  Result<Reply> On(const AskOrder& ask);
  template <typename Other>
  Result<Reply> On(const Other& /*ask*/) {
    return Status(Code::kProtocol,
                  "the client of this test asked out of order; use the same weightcast on both hosts");
  }

  const Options options_;
  std::string address_;  ///< This host's, on the path; empty: it is translated on the way.
  std::unique_ptr<EchoResponder> echo_;
  std::unique_ptr<DataLink> link_;
  std::unique_ptr<transport::verbs::DeviceProbe> device_;
  std::string report_;
};

}  // namespace weightcast::peertest
