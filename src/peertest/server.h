#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "stream/token.h"
#include "weightcast/settings.h"
#include "weightcast/status.h"

namespace weightcast::peertest {

/// Takes part in tests of others who have the job's token, one at a time; who comes meanwhile is told so. No
/// request reads or writes a file, or runs a command. Threads: those of a StreamServer, which answer what is
/// quick; one that describes this host; one for the test.
class TestServer {
 public:
  struct Options {
    std::string host = {};
    uint16_t port = 0;
    stream::MasterToken master;
    Settings settings = {};
    /// A test that another host made with this one has ended. On a thread of the server's; must not block.
    std::function<void()> on_over = {};
  };
  /// Errors: those of StreamServer::Start.
  static Result<std::unique_ptr<TestServer>> Start(Options options);
  /// Ends the test that runs, within a second or so.
  virtual ~TestServer() = default;
  [[nodiscard]] virtual uint16_t port() const = 0;
};

}  // namespace weightcast::peertest
