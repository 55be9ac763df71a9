#pragma once

#include <string>

#include "peertest/test.h"
#include "tools/command.h"
#include "weightcast/status.h"

namespace weightcast::tools {

/// The flags of `weightcast doctor` for tests between hosts.
class HostTests {
 public:
  void Declare(Flags& flags);
  /// One of the flags was given.
  [[nodiscard]] bool chosen() const { return serve_ || once_ || limit_ != 0 || !listen_.empty() || tests(); }
  /// Serves, or tests and prints.
  Status Run(const Context& context);

 private:
  [[nodiscard]] Status CheckFlags() const;
  Status Serve(const Context& context);
  Status Test(const Context& context);
  [[nodiscard]] Status TestPeer(const peertest::TestMeans& means, bool json) const;
  [[nodiscard]] bool tests() const {
    return !peer_.empty() || !cluster_.empty() || !html_.empty() || workers_;
  }
  [[nodiscard]] double seconds() const { return static_cast<double>(milliseconds_) / 1e3; }

  bool serve_ = false;
  std::string listen_;
  bool once_ = false;
  int64_t limit_ = 0;
  std::string peer_;
  std::string cluster_;
  bool workers_ = false;
  std::string html_;
  int64_t milliseconds_ = 500;
};

}  // namespace weightcast::tools
