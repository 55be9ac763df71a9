#include "soak/network.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <vector>

#include "base/strings.h"

namespace weightcast::soak {
namespace {

bool Try(const std::string& command) { return std::system((command + " >/dev/null 2>&1").c_str()) == 0; }

void Do(const std::string& command) {
  if (!Try(command)) throw std::runtime_error("failed: " + command);
}

}  // namespace

Network::Network(int number, size_t processes)
    : prefix_(StrCat("wcs", ::getpid(), "-", number)), number_(number), processes_(processes) {
  Do(StrCat("ip netns add ", prefix_, "-hub"));
  Do(StrCat("ip -n ", prefix_, "-hub link add br0 type bridge"));
  Do(StrCat("ip -n ", prefix_, "-hub link set br0 up"));
  for (size_t i = 0; i < processes_; ++i) {
    const std::string host = NamespaceOf(i);
    Do(StrCat("ip netns add ", host));
    Do(StrCat("ip link add p", i, " netns ", prefix_, "-hub type veth peer eth0 netns ", host));
    Do(StrCat("ip -n ", prefix_, "-hub link set p", i, " master br0 up"));
    Do(StrCat("ip -n ", host, " addr add ", AddressOf(i), "/24 dev eth0"));
    Do(StrCat("ip -n ", host, " link set eth0 up"));
    Do(StrCat("ip -n ", host, " link set lo up"));
  }
}

Network::~Network() {
  for (size_t i = 0; i < processes_; ++i) Try(StrCat("ip netns del ", NamespaceOf(i)));
  Try(StrCat("ip netns del ", prefix_, "-hub"));
}

std::string Network::AddressOf(size_t process) const { return StrCat("10.98.", number_, ".", process + 1); }

std::string Network::NamespaceOf(size_t process) const { return StrCat(prefix_, "-", process); }

void Network::SetLink(size_t process, bool up) const {
  Do(StrCat("ip -n ", prefix_, "-hub link set p", process, up ? " up" : " down"));
}

void Network::DropPackets(size_t process, int percent) const {
  const std::string nft = StrCat("ip netns exec ", NamespaceOf(process), " nft ");
  Try(nft + "delete table inet soak");
  if (percent == 0) return;
  Do(nft + "add table inet soak");
  Do(nft + "'add chain inet soak in { type filter hook input priority 0; }'");
  const std::string chance = percent < 100 ? StrCat("numgen random mod 100 '<' ", percent) : "";
  Do(StrCat(nft, "add rule inet soak in iifname eth0 ", chance, " drop"));
}

bool Network::BreakOne(size_t process, Break how, unsigned choice) const {
  const std::string in = StrCat("ip netns exec ", NamespaceOf(process), " ");
  std::vector<std::string> ports;
  FILE* list = ::popen((in + "ss -Htn state established 2>/dev/null").c_str(), "r");
  if (list == nullptr) return false;
  char local[128];
  while (std::fscanf(list, "%*s %*s %127s %*s", local) == 1) {
    const std::string address = local;
    ports.push_back(address.substr(address.rfind(':') + 1));
  }
  ::pclose(list);
  if (ports.empty()) return false;
  const std::string& port = ports[choice % ports.size()];
  if (how == Break::kReset) return Try(StrCat(in, "ss -K sport = :", port, " 2>/dev/null | grep -q ", port));
  const std::string nft = in + "nft ";
  Do(nft + "add table inet soak");
  Do(nft + "'add chain inet soak in { type filter hook input priority 0; }'");
  Do(nft + "'add chain inet soak out { type filter hook output priority 0; }'");
  Do(StrCat(nft, "add rule inet soak in tcp dport ", port, " drop"));
  Do(StrCat(nft, "add rule inet soak out tcp sport ", port, " drop"));
  return true;
}

bool CanMakeNetworks() {
  const std::string name = StrCat("wcs", ::getpid(), "-try");
  const bool made = Try(StrCat("ip netns add ", name));
  const bool filters = made && Try(StrCat("ip netns exec ", name, " nft list ruleset"));
  if (made) Try(StrCat("ip netns del ", name));
  return filters;
}

}  // namespace weightcast::soak
