#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "peertest/facts.h"
#include "peertest/messages.h"
#include "stream/token.h"
#include "weightcast/settings.h"

namespace weightcast::peertest {

/// What a test uses of this process.
struct TestMeans {
  Settings settings = {};
  stream::RoleToken token;
  std::function<bool()> interrupted{};              ///< Looked at about ten times a second; any thread.
  std::function<void(std::string_view)> on_step{};  ///< What is measured now.
};

/// Tests the host that serves at `target` ("host" or "host:port"). What fails stands in the facts; the rest
/// goes on. Bounded: about twelve times the plan's seconds, and up to 5 s more for each part that does not
/// answer.
PeerFacts RunTest(const std::string& target, const TestPlan& plan, const TestMeans& means);

}  // namespace weightcast::peertest
