#include <sys/stat.h>

#include "base/strings.h"
#include "checkpoint/files.h"
#include "doctor/baseline.h"
#include "doctor/checks.h"
#include "doctor/exports.h"
#include "doctor/gather.h"
#include "doctor/report.h"
#include "tools/command.h"
#include "tools/common/files.h"
#include "tools/common/output.h"
#include "tools/doctor/hosts.h"
#include "tools/doctor/verdict.h"
#include "weightcast/version.h"

namespace weightcast::tools {
namespace {

/// Far more than a report of a large machine.
constexpr size_t kMostReport = size_t{64} << 20;

class DoctorCommand : public Command {
 public:
  DoctorCommand()
      : Command(
            {.name = "doctor",
             .summary = "Says what is wrong with this machine, or between hosts, and which command fixes it",
             .example =
                 R"-(  weightcast doctor                                 this machine; exit code 1 where something is FAIL
  weightcast doctor --controller head:29750         also the route to the controller
  eval "$(weightcast doctor --print-env)"           sets NCCL, gloo and weightcast up
  weightcast doctor --bundle doctor.json            a file for a support request
  weightcast doctor --baseline doctor.json          and what has changed since
  weightcast doctor --serve                         on one host, and on the other:
  weightcast doctor --peer node1                    the way to it: latency, bandwidth, MTU, ports
)-"}) {}
  void Declare(Flags& flags) override {
    flags.Add("--print-env", print_env_, "Print export lines for a shell, and nothing else");
    flags.Add("--bundle", bundle_, "FILE", "Write findings and facts for a support request, without secrets");
    flags.Add("--baseline", baseline_, "FILE",
              "Also say what has changed since this report (--json or --bundle)");
    flags.Add("--clock", clock_, "HOST:PORT", "Compare the clock with the Date of this HTTP server");
    hosts_.Declare(flags);
  }
  Status Run(const Context& context) override {
    if (hosts_.chosen()) return RunHosts(context);
    doctor::Sources sources = doctor::LocalSources(context.settings);
    sources.check_route =
        context.overrides.contains("controller") || sources.environment.contains("WEIGHTCAST_CONTROLLER");
    sources.clock = clock_;
    WC_ASSIGN_OR_RETURN(const std::string baseline, ReadBaseline());
    doctor::Report report{.facts = doctor::Gather(sources), .findings = {}, .exports = {}, .changes = {}};
    report.findings = doctor::CheckAll(report.facts);
    report.exports = doctor::ExportsFor(report.facts);
    if (!baseline_.empty()) {
      auto changes = doctor::ChangesSince(baseline, report.facts);
      if (!changes.ok()) return Error(changes.status().code(), baseline_, ": ", changes.status().message());
      report.changes = std::move(changes).value();
      report.compared = true;
    }
    WC_RETURN_IF_ERROR(WriteBundle(report));
    WC_RETURN_IF_ERROR(Print(print_env_     ? doctor::ExportsText(report.exports)
                             : context.json ? doctor::ReportJson(report, LibraryVersion())
                                            : doctor::ReportText(report)));
    // The exports are for `eval`, which a FAIL must not stop.
    return print_env_ ? Status::Ok() : VerdictOf(report.findings);
  }

 private:
  Status RunHosts(const Context& context) {
    if (print_env_ || !bundle_.empty() || !baseline_.empty() || !clock_.empty())
      return {Code::kInvalidArgument,
              "--print-env, --bundle, --baseline and --clock are for this machine; leave them out where "
              "hosts are tested"};
    return hosts_.Run(context);
  }
  [[nodiscard]] Result<std::string> ReadBaseline() const {
    if (baseline_.empty()) return std::string();
    return checkpoint::ReadTextFile(baseline_, kMostReport);
  }
  [[nodiscard]] Status WriteBundle(const doctor::Report& report) const {
    if (bundle_.empty()) return Status::Ok();
    const mode_t before = umask(077);  // For its owner only: it has the machine's names and addresses.
    const Status written = WriteFileAtomically(bundle_, doctor::ReportJson(report, LibraryVersion()));
    umask(before);
    return written;
  }
  HostTests hosts_;
  std::string bundle_;
  std::string baseline_;
  std::string clock_;
  bool print_env_ = false;
};

}  // namespace

std::unique_ptr<Command> MakeDoctorCommand() { return std::make_unique<DoctorCommand>(); }

}  // namespace weightcast::tools
