#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "tools/bench/channel.h"
#include "weightcast/settings.h"
#include "weightcast/status.h"

namespace weightcast::tools {

/// Lends this host's half of a benchmark to whoever proves the job's token, until a stop signal: a process
/// for each party that is asked for. `listen`: "port" for all addresses, or "host:port". Loopback takes the
/// user's own token, other addresses only a configured one. Call it while single-threaded: it forks.
Status ServeParties(const std::string& listen, const Settings& settings,
                    const std::function<Status(std::string_view address)>& on_listening);

/// A party at such a host, and what this host's party needs to meet it.
struct RemoteParty {
  BenchChannel channel;
  std::string local_address;  ///< Of this host, on the path between the two.
};
/// `connect`: "host:port". Proves the token and has the other side prove it.
Result<RemoteParty> CallParty(const std::string& connect, const std::string& token, TimePoint deadline);
/// The token for that address. Errors: kPermission when one must be configured and none is.
Result<std::string> TokenFor(const std::string& host, const Settings& settings);

/// The settings of a party whose transfers go over the path that has this address here.
Settings SettingsOn(const std::string& local_address, Settings settings);

}  // namespace weightcast::tools
