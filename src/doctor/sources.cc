#include "doctor/sources.h"

#include <ifaddrs.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/process.h"
#include "base/socket.h"
#include "doctor/facts.h"

namespace weightcast::doctor {
namespace {

int64_t LimitOf(decltype(RLIMIT_NOFILE) resource) {
  rlimit limit{};
  if (getrlimit(resource, &limit) != 0) return kUnknown;
  return limit.rlim_cur == RLIM_INFINITY ? kNoLimit : static_cast<int64_t>(limit.rlim_cur);
}

int64_t SizeOf(const char* folder) {
  struct statvfs info{};
  return statvfs(folder, &info) == 0 ? static_cast<int64_t>(info.f_blocks * info.f_frsize) : kUnknown;
}

std::map<std::string, std::string> Environment() {
  std::map<std::string, std::string> all;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string line = *entry;
    if (const size_t equals = line.find('='); equals != std::string::npos)
      all.emplace(line.substr(0, equals), line.substr(equals + 1));
  }
  return all;
}

std::map<std::string, std::vector<std::string>> Addresses() {
  std::map<std::string, std::vector<std::string>> all;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return all;
  for (const ifaddrs* one = list; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr) continue;
    const int family = one->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    const socklen_t length = family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
    all[one->ifa_name].push_back(SocketAddress(one->ifa_addr, length).Host());
  }
  freeifaddrs(list);
  return all;
}

}  // namespace

Sources LocalSources(const Settings& settings) {
  Sources sources;
  sources.environment = Environment();
  sources.settings = settings;
  sources.host_name = HostName();
  utsname names{};
  if (uname(&names) == 0) sources.kernel = names.release;
  sources.addresses = Addresses();
  sources.descriptors = LimitOf(RLIMIT_NOFILE);
  sources.memlock_bytes = LimitOf(RLIMIT_MEMLOCK);
  sources.shm_bytes = SizeOf("/dev/shm");
  sources.run_dcb = true;
  sources.verbs = [] { return drivers::LoadIbverbs(); };
  sources.cuda = [](const Settings& chosen) { return device::TakeInventory(chosen); };
  return sources;
}

}  // namespace weightcast::doctor
