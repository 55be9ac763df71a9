#include "tools/bench/p2p/crew.h"

#include <sys/wait.h>

#include <csignal>

#include "base/random.h"
#include "base/socket.h"
#include "base/strings.h"
#include "tools/bench/p2p/hosts.h"
#include "tools/bench/p2p/party.h"
#include "tools/bench/processes.h"

namespace weightcast::tools {
namespace {

constexpr double kAnswerSeconds = 120;

}  // namespace

P2pCrew::~P2pCrew() {
  for (const Party& party : parties_)
    if (party.pid > 0) kill(party.pid, SIGKILL);
  for (const Party& party : parties_)
    if (party.pid > 0) waitpid(party.pid, nullptr, 0);
}

Status P2pCrew::StartHere(const Settings& settings, const std::string& token) {
  WC_ASSIGN_OR_RETURN(ChannelPair pair, MakeChannelPair());
  WC_ASSIGN_OR_RETURN(const pid_t pid, ForkWorker([&] {
                        pair.a.Close();
                        for (Party& other : parties_) other.channel.Close();
                        ServeParty(pair.b, settings, token);
                        return Status::Ok();
                      }));
  parties_.push_back({std::move(pair.a), pid});
  return Status::Ok();
}

Status P2pCrew::Start(const P2pOptions& options) {
  if (options.connect.empty()) {
    const Settings settings = SettingsOn("127.0.0.1", options.settings);
    const std::string token = StrCat(RandomId(), RandomId());
    for (int64_t i = 0; i < 2 * options.pairs; ++i) WC_RETURN_IF_ERROR(StartHere(settings, token));
    return Status::Ok();
  }
  WC_ASSIGN_OR_RETURN(const HostPort place, ParseHostPort(options.connect));
  WC_ASSIGN_OR_RETURN(const std::string token, TokenFor(place.host, options.settings));
  for (int64_t i = 0; i < options.pairs; ++i) {
    const TimePoint deadline = Clock::now() + options.settings.connect_timeout;
    WC_ASSIGN_OR_RETURN(RemoteParty there, CallParty(options.connect, token, deadline));
    WC_RETURN_IF_ERROR(StartHere(SettingsOn(there.local_address, options.settings), token));
    parties_.push_back({std::move(there.channel), -1});
  }
  return Status::Ok();
}

Status P2pCrew::Ask(size_t party, std::string_view message) const {
  return parties_[party].channel.Send(message);
}

Result<std::string> P2pCrew::Answer(size_t party) const {
  return AwaitAnswer(parties_[party].channel, kAnswerSeconds);
}

Status P2pCrew::AwaitAll(const std::vector<size_t>& which) const {
  for (const size_t party : which) WC_RETURN_IF_ERROR(Answer(party).status());
  return Status::Ok();
}

}  // namespace weightcast::tools
