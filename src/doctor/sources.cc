#include "doctor/sources.h"

#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/interfaces.h"
#include "base/process.h"
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
  for (const InterfaceAddress& one : InterfaceAddresses()) all[one.interface].push_back(one.address.Host());
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
