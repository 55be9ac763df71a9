#include "tools/info/machine.h"

#include <sched.h>
#include <sys/resource.h>
#include <sys/sysinfo.h>
#include <sys/uio.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>

#include "base/advice.h"
#include "base/available.h"
#include "base/interfaces.h"
#include "base/process.h"
#include "base/strings.h"
#include "drivers/ibverbs/ibverbs.h"
#include "transport/transport.h"
#include "weightcast/memory.h"

namespace weightcast::tools {
namespace {

std::string CpuModel() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

int UsableCpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

int64_t ReadNumberOf(const std::string& interface, const char* file) {
  std::ifstream stream(StrCat("/sys/class/net/", interface, "/", file));
  int64_t value = -1;
  return stream >> value ? value : -1;
}

/// The interface that has this address, by the kernel's list.
std::string InterfaceOf(const SocketAddress& address) {
  std::string name = "unknown";
  for (const InterfaceAddress& one : InterfaceAddresses())
    if (one.address.Host() == address.Host()) name = one.interface;
  return name;
}

Status TryMemfd() {
  const auto buffer = Allocate(4096);
  return buffer.ok() ? Status::Ok() : buffer.status();
}

/// Writes a byte into a child's memory, which is the same address there until it is written.
Status TryCrossProcessCopy() {
  static char target = 'a';
  const pid_t child = fork();
  if (child < 0) return Error(Code::kExhausted, "cannot start a process: ", ErrnoAndAdvice(errno));
  if (child == 0) {
    pause();
    _exit(0);
  }
  char source = 'b';
  const iovec local{&source, 1};
  const iovec remote{&target, 1};
  const ssize_t written = process_vm_writev(child, &local, 1, &remote, 1, 0);
  const int error = errno;
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  if (written == 1) return Status::Ok();
  return Error(Code::kPermission, "process_vm_writev: ", ErrnoText(error),
               "; shared memory goes through a ring instead; allow this call with "
               "kernel.yama.ptrace_scope=0 or the capability SYS_PTRACE");
}

}  // namespace

Machine LookAtMachine(const Settings& settings) {
  Machine machine;
  machine.host = HostName();
  utsname names{};
  if (uname(&names) == 0) machine.kernel = StrCat(names.sysname, " ", names.release, " ", names.machine);
  machine.cpu = CpuModel();
  machine.cpus = UsableCpus();
  struct sysinfo memory{};
  if (sysinfo(&memory) == 0) machine.memory_bytes = uint64_t{memory.totalram} * memory.mem_unit;
  machine.memory_available_bytes = AvailableMemory();
  rlimit descriptors{};
  if (getrlimit(RLIMIT_NOFILE, &descriptors) == 0) machine.descriptor_limit = descriptors.rlim_cur;
  for (const SocketAddress& address : LocalAddresses(settings.interface)) {
    const std::string interface = InterfaceOf(address);
    machine.addresses.push_back(
        {interface, address.Host(), ReadNumberOf(interface, "speed"), ReadNumberOf(interface, "mtu")});
  }
  for (const auto& transport : transport::BuiltinTransports())
    machine.transports.emplace_back(transport.name);
  machine.cross_process_copy = TryCrossProcessCopy();
  machine.memfd = TryMemfd();
  machine.hardware = topology::LookAtHardware(settings, drivers::LoadIbverbs(), topology::Sysfs());
  machine.transport_checks = CheckTransports(settings, machine.hardware);
  machine.cuda = device::TakeInventory(settings);
  return machine;
}

}  // namespace weightcast::tools
