#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "tools/bench/channel.h"
#include "tools/bench/p2p/measure.h"
#include "tools/bench/p2p/messages.h"
#include "weightcast/status.h"

namespace weightcast::tools {

/// The parties of one measurement: pair i is made of party 2i and party 2i + 1, and the second ones are at
/// the other host, if there is one. They end with this object.
class P2pCrew {
 public:
  P2pCrew() = default;
  ~P2pCrew();
  P2pCrew(const P2pCrew&) = delete;
  P2pCrew& operator=(const P2pCrew&) = delete;

  /// Starts all of them. Call it while single-threaded.
  Status Start(const P2pOptions& options);
  [[nodiscard]] size_t size() const { return parties_.size(); }
  [[nodiscard]] bool remote(size_t party) const { return parties_[party].pid < 0; }
  Status Ask(size_t party, std::string_view message) const;
  /// Errors: what went wrong at the party; kTimedOut; kCancelled when this process has been asked to end.
  [[nodiscard]] Result<std::string> Answer(size_t party) const;
  /// Has each of `which` answer nothing but success.
  [[nodiscard]] Status AwaitAll(const std::vector<size_t>& which) const;

 private:
  struct Party {
    BenchChannel channel;
    pid_t pid = -1;
  };
  Status StartHere(const Settings& settings, const std::string& token);

  std::vector<Party> parties_;
};

}  // namespace weightcast::tools
