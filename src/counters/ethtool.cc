#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cstring>
#include <vector>

#include "base/fd.h"
#include "counters/reader.h"

namespace weightcast::counters {
namespace {

/// More than any driver has.
constexpr uint32_t kMostStatistics = 1 << 16;

bool Ask(int socket, const std::string& interface, void* question) {
  ifreq request{};
  if (interface.size() >= sizeof request.ifr_name) return false;
  std::memcpy(request.ifr_name, interface.data(), interface.size());
  request.ifr_data = static_cast<char*>(question);
  return ::ioctl(socket, SIOCETHTOOL, &request) == 0;
}

/// A header of ethtool's and the bytes behind it, aligned for 64-bit numbers.
template <typename Header>
class Question {
 public:
  Question(uint32_t command, size_t bytes) : memory_((sizeof(Header) + bytes) / sizeof(uint64_t) + 1) {
    header().cmd = command;
  }
  Header& header() { return *reinterpret_cast<Header*>(memory_.data()); }
  void* raw() { return memory_.data(); }

 private:
  std::vector<uint64_t> memory_;
};

uint32_t CountOf(int socket, const std::string& interface) {
  Question<ethtool_sset_info> question(ETHTOOL_GSSET_INFO, sizeof(uint32_t));
  question.header().sset_mask = uint64_t{1} << ETH_SS_STATS;
  if (!Ask(socket, interface, question.raw()) || question.header().sset_mask == 0) return 0;
  return question.header().data[0];
}

/// What `ethtool -S` shows. It needs no privilege.
std::map<std::string, uint64_t> DriverStatistics(const std::string& interface) {
  std::map<std::string, uint64_t> all;
  const UniqueFd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return all;
  const uint32_t count = CountOf(socket.get(), interface);
  if (count == 0 || count > kMostStatistics) return all;
  Question<ethtool_gstrings> names(ETHTOOL_GSTRINGS, size_t{count} * ETH_GSTRING_LEN);
  names.header().string_set = ETH_SS_STATS;
  names.header().len = count;
  Question<ethtool_stats> values(ETHTOOL_GSTATS, size_t{count} * sizeof(uint64_t));
  values.header().n_stats = count;
  if (!Ask(socket.get(), interface, names.raw()) || !Ask(socket.get(), interface, values.raw())) return all;
  for (uint32_t i = 0; i < std::min(names.header().len, values.header().n_stats) && i < count; ++i) {
    const char* const name = reinterpret_cast<const char*>(names.header().data) + size_t{i} * ETH_GSTRING_LEN;
    all.emplace(std::string(name, strnlen(name, ETH_GSTRING_LEN)), values.header().data[i]);
  }
  return all;
}

}  // namespace

Sources LocalSources() {
  return {.root = "/", .driver = DriverStatistics, .nvml = [] { return drivers::LoadNvml(); }};
}

}  // namespace weightcast::counters
