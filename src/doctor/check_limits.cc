
#include "base/strings.h"
#include "doctor/checks.h"

namespace weightcast::doctor {
namespace {

constexpr int kIpcLock = 14;
constexpr int kSysPtrace = 19;
/// A worker needs 48 to start; NCCL and torch open some for each peer and channel.
constexpr int64_t kFewDescriptors = 1024;
constexpr int64_t kUsualDescriptors = 4096;
/// Less than the memory that registers for one update, by far.
constexpr int64_t kLittleMemlock = int64_t{1} << 30;
/// Docker's default is 64 MB. NCCL takes 33 MB for each pair of processes, torch's loaders more.
constexpr int64_t kLittleShm = int64_t{1} << 30;
constexpr int64_t kFewProcesses = 1024;
constexpr double kFullGroup = 0.9;

std::string BytesText(int64_t bytes) {
  if (bytes == kUnknown) return "unknown";
  return bytes == kNoLimit ? "unlimited" : HumanBytes(static_cast<double>(bytes));
}

void CheckDescriptors(const Facts& facts, Findings& findings) {
  const int64_t limit = facts.limits.descriptors;
  if (limit == kUnknown) return;
  Finding finding{
      .check = "descriptors",
      .text = StrCat("A process may open ", limit == kNoLimit ? "any number of" : StrCat(limit), " files."),
      .evidence = "getrlimit(RLIMIT_NOFILE), after the soft limit was raised to the hard one"};
  if (limit >= kUsualDescriptors) return findings.Ok(finding);
  finding.text =
      StrCat("A process may open only ", limit, " files. NCCL, torch and weightcast use some for each peer.");
  finding.remedy =
      facts.host.container.empty()
          ? "ulimit -n 1048576  # for good: LimitNOFILE= of the service, or /etc/security/limits.conf"
          : "docker run --ulimit nofile=1048576:1048576 …";
  findings.Add(limit < kFewDescriptors ? Level::kFail : Level::kWarn, finding);
}

void CheckMemlock(const Facts& facts, Findings& findings) {
  const int64_t limit = facts.limits.memlock_bytes;
  Finding finding{.check = "memlock",
                  .text = StrCat("Registered memory: ", BytesText(limit), "."),
                  .evidence = StrCat("getrlimit(RLIMIT_MEMLOCK); CapEff ", facts.limits.capabilities)};
  if (facts.rdma.devices.empty() || !MayUse(facts, "verbs")) {
    finding.text = StrCat("memlock is ", BytesText(limit), ", which only RDMA would meet.");
    findings.NotApplicable(finding);
  } else if (limit == kNoLimit || limit == kUnknown) {
    findings.Ok(finding);
  } else if (HasCapability(facts, kIpcLock)) {
    finding.text = StrCat("memlock is ", BytesText(limit), ", but the capability IPC_LOCK lifts it.");
    findings.Ok(finding);
  } else {
    finding.text = StrCat("memlock is ", BytesText(limit),
                          ". RDMA registers whole tensors, and registration will fail with ENOMEM.");
    finding.remedy = facts.host.container.empty()
                         ? "ulimit -l unlimited  # for good: LimitMEMLOCK=infinity of the service, or "
                           "memlock in /etc/security/limits.conf"
                         : "docker run --ulimit memlock=-1 …  # Kubernetes: the capability IPC_LOCK";
    findings.Add(limit < kLittleMemlock ? Level::kFail : Level::kWarn, finding);
  }
}

void CheckShm(const Facts& facts, Findings& findings) {
  const int64_t size = facts.limits.shm_bytes;
  Finding finding{.check = "shm",
                  .text = StrCat("/dev/shm holds ", BytesText(size), "."),
                  .evidence = "statvfs(/dev/shm)"};
  if (size >= kLittleShm) return findings.Ok(finding);
  finding.text = size <= 0 ? "There is no /dev/shm. NCCL and torch need it; weightcast does not."
                           : StrCat("/dev/shm holds only ", BytesText(size),
                                    ". NCCL and torch need more; weightcast does not use it.");
  finding.remedy = facts.host.container.empty() ? "mount -o remount,size=16G /dev/shm"
                                                : "docker run --shm-size 16g …  # or --ipc host";
  findings.Warn(finding);
}

void CheckGroup(const Facts& facts, Findings& findings) {
  const LimitFacts& limits = facts.limits;
  const int64_t most = limits.cgroup_memory_bytes;
  if (most == kUnknown && limits.cgroup_processes == kUnknown)
    return findings.NotApplicable({.check = "cgroup",
                                   .text = "No limits of a control group can be read.",
                                   .evidence = "/proc/self/cgroup, /sys/fs/cgroup"});
  const bool limited = most != kUnknown && most != kNoLimit;
  const std::string evidence =
      StrCat("control group ", limits.cgroup.empty() ? "/" : limits.cgroup, ": memory ", BytesText(most),
             ", used ", BytesText(limits.cgroup_memory_used), ", processes ",
             limits.cgroup_processes == kNoLimit || limits.cgroup_processes == kUnknown
                 ? "unlimited"
                 : StrCat(limits.cgroup_processes));
  bool fine = true;
  if (limited && static_cast<double>(limits.cgroup_memory_used) > kFullGroup * static_cast<double>(most)) {
    fine = false;
    findings.Warn(
        {.check = "cgroup_memory",
         .text = StrCat("The control group uses ", BytesText(limits.cgroup_memory_used), " of ",
                        BytesText(most), ". More memory ends a process, or is page cache that can go."),
         .evidence = evidence,
         .remedy = facts.host.container.empty()
                       ? "systemctl set-property UNIT MemoryMax=…"
                       : "docker update --memory … CONTAINER  # Kubernetes: resources.limits.memory"});
  }
  if (limits.cgroup_processes != kUnknown && limits.cgroup_processes < kFewProcesses) {
    fine = false;
    findings.Warn({.check = "cgroup_processes",
                   .text = StrCat("The control group allows ", limits.cgroup_processes,
                                  " processes and threads. A job with GPUs needs hundreds for each process."),
                   .evidence = evidence,
                   .remedy = facts.host.container.empty() ? "systemctl set-property UNIT TasksMax=infinity"
                                                          : "docker run --pids-limit -1 …"});
  }
  if (fine)
    findings.Ok({.check = "cgroup",
                 .text = limited ? StrCat("The control group may use ", BytesText(most), " of memory.")
                                 : "The control group limits no memory.",
                 .evidence = evidence});
}

void CheckPtrace(const Facts& facts, Findings& findings) {
  const std::string& scope = facts.limits.ptrace_scope;
  Finding finding{.check = "ptrace",
                  .evidence = scope.empty() ? "no /proc/sys/kernel/yama/ptrace_scope"
                                            : StrCat("/proc/sys/kernel/yama/ptrace_scope: ", scope)};
  const std::string ptracer = Setting(facts, "ptracer");
  if (!MayUse(facts, "shm")) {
    finding.text = "The setting transport leaves shm out.";
    findings.NotApplicable(finding);
  } else if (scope.empty() || scope == "0" || (scope != "3" && HasCapability(facts, kSysPtrace)) ||
             (scope == "1" && !ptracer.empty() && ptracer != "off")) {
    finding.text = "Processes of one user may copy each other's memory.";
    findings.Ok(finding);
  } else {
    finding.text =
        "Yama forbids copies between processes. Memory that was not made by allocate is copied twice over "
        "shm.";
    finding.remedy = scope == "1" ? "export WEIGHTCAST_PTRACER=peer  # or: sysctl kernel.yama.ptrace_scope=0"
                     : scope == "2" ? "sysctl kernel.yama.ptrace_scope=0  # or the capability SYS_PTRACE"
                                    : "allocate tensors with wc.allocate; scope 3 stays until a reboot";
    findings.Warn(finding);
  }
}

void CheckCapabilities(const Facts& facts, Findings& findings) {
  if (facts.limits.capabilities.empty()) return;
  const auto has = [&](int number) { return HasCapability(facts, number) ? "yes" : "no"; };
  const bool filtered = facts.limits.seccomp == "2";
  findings.Ok({.check = "capabilities",
               .text = StrCat("IPC_LOCK: ", has(kIpcLock), ", SYS_PTRACE: ", has(kSysPtrace),
                              filtered ? "; seccomp filters system calls." : "."),
               .evidence = StrCat(
                   "CapEff ", facts.limits.capabilities,
                   facts.host.container.empty() ? "" : StrCat("; a container by ", facts.host.container))});
}

}  // namespace

void CheckLimits(const Facts& facts, Findings& findings) {
  CheckDescriptors(facts, findings);
  CheckMemlock(facts, findings);
  CheckShm(facts, findings);
  CheckGroup(facts, findings);
  CheckPtrace(facts, findings);
  CheckCapabilities(facts, findings);
}

}  // namespace weightcast::doctor
