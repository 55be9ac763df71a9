#include <unistd.h>

#include "base/strings.h"
#include "control/client.h"
#include "tools/command.h"
#include "tools/common/json.h"
#include "tools/common/output.h"
#include "tools/common/stop.h"
#include "tools/info/cuda.h"
#include "tools/info/hardware.h"
#include "tools/info/machine.h"
#include "tools/info/trace.h"
#include "tools/info/view.h"
#include "weightcast/clock.h"
#include "weightcast/version.h"

namespace weightcast::tools {
namespace {

// A controller says something at least every second.
constexpr double kControllerSilence = 10;
constexpr double kSliceSeconds = 0.2;

std::string Outcome(const Status& status) { return status.ok() ? "works" : "no: " + status.message(); }

std::string AsText(const Machine& machine) {
  std::string out = StrCat("weightcast  ", LibraryVersion(), "\nhost        ", machine.host, "\nkernel      ",
                           machine.kernel, "\ncpu         ", machine.cpus, " x ", machine.cpu, "\n");
  out += StrCat("memory      ", HumanBytes(static_cast<double>(machine.memory_bytes)), ", ",
                HumanBytes(static_cast<double>(machine.memory_available_bytes)), " available\n");
  out += StrCat("files       ", machine.descriptor_limit, " descriptors a process\ntransports  ");
  for (const auto& transport : machine.transports) out += transport + " ";
  out += StrCat("(best first)\nshared memory (memfd)        ", Outcome(machine.memfd),
                "\ncopy into another process    ", Outcome(machine.cross_process_copy), "\n\n");
  Table addresses({"interface", "address", "Mbit/s", "MTU"});
  const auto known = [](int64_t value) { return value < 0 ? std::string("-") : StrCat(value); };
  for (const auto& one : machine.addresses)
    addresses.Add({one.interface, one.address, known(one.mbit_per_second), known(one.mtu)});
  return StrCat(out, addresses.ToString(), "\n", HardwareText(machine.transport_checks, machine.hardware),
                "\n", CudaText(machine.cuda));
}

std::string AsJson(const Machine& machine) {
  Json json{{"weightcast", LibraryVersion()},
            {"host", machine.host},
            {"kernel", machine.kernel},
            {"cpu", machine.cpu},
            {"cpus", machine.cpus},
            {"memory_bytes", machine.memory_bytes},
            {"memory_available_bytes", machine.memory_available_bytes},
            {"descriptor_limit", machine.descriptor_limit},
            {"transports", machine.transports},
            {"memfd", machine.memfd.ok()},
            {"cross_process_copy", machine.cross_process_copy.ok()},
            {"addresses", Json::array()}};
  for (const auto& one : machine.addresses)
    json["addresses"].push_back({{"interface", one.interface},
                                 {"address", one.address},
                                 {"mbit_per_second", one.mbit_per_second},
                                 {"mtu", one.mtu}});
  json.update(HardwareJson(machine.transport_checks, machine.hardware));
  json["cuda"] = CudaJson(machine.cuda);
  return JsonLine(json);
}

class InfoCommand : public Command {
 public:
  InfoCommand()
      : Command({.name = "info",
                 .summary = "Shows what this machine has, or, with --controller, what a running cluster does",
                 .example = R"(  weightcast info                                        this machine
  weightcast info --controller head:29750 --watch        a running cluster, live
  weightcast info --controller head:29750 --json --watch one line of JSON at each change
  weightcast info --controller head:29750 --trace        what controller and workers said last
)"}) {}
  void Declare(Flags& flags) override {
    flags.Add("--watch", watch_, "Print again at each change, until interrupted");
    flags.Add("--trace", trace_,
              "Print the last messages between controller and workers; with --watch also those to come");
    flags.Add("--settings-markdown", settings_markdown_, "Print the table of all settings");
  }
  Status Run(const Context& context) override {
    if (settings_markdown_) return Print(SettingsMarkdown());
    if (trace_) return Trace(context);
    if (watch_) return Watch(context);
    if (context.overrides.contains("controller")) {
      WC_ASSIGN_OR_RETURN(const auto view, control::GetView(context.settings,
                                                            Clock::now() + context.settings.connect_timeout));
      return Print(context.json ? ViewJson(view) : ViewText(view));
    }
    const Machine machine = LookAtMachine(context.settings);
    return Print(context.json ? AsJson(machine) : AsText(machine));
  }

 private:
  static Status Watch(const Context& context) {
    WC_ASSIGN_OR_RETURN(const auto stream, control::ViewStream::Open(context.settings));
    const bool redraw = !context.json && isatty(STDOUT_FILENO) != 0;
    TimePoint heard = Clock::now();
    while (StopSignal() == 0) {
      const auto view = stream->Next(Clock::now() + FromSeconds(kSliceSeconds));
      const TimePoint now = Clock::now();
      if (!view.ok()) {
        if (view.status().code() != Code::kTimedOut || now - heard > FromSeconds(kControllerSilence))
          return view.status();
        continue;
      }
      heard = now;
      WC_RETURN_IF_ERROR(Print(context.json ? ViewJson(*view)
                                            : StrCat(redraw ? "\033[H\033[J" : "", ViewText(*view), "\n")));
    }
    return Status::Ok();
  }

  /// Those that are remembered, and with --watch what follows.
  [[nodiscard]] Status Trace(const Context& context) const {
    WC_ASSIGN_OR_RETURN(const auto stream, control::ViewStream::Open(context.settings));
    uint64_t place = 0;
    TimePoint heard = Clock::now();
    while (StopSignal() == 0) {
      const auto trace = stream->Trace(place, Clock::now() + FromSeconds(kSliceSeconds));
      const TimePoint now = Clock::now();
      if (!trace.ok()) {
        if (trace.status().code() != Code::kTimedOut || now - heard > FromSeconds(kControllerSilence))
          return trace.status();
        continue;
      }
      heard = now;
      if (place != 0 && trace->first > place)
        PrintError(StrCat(trace->first - place,
                          " messages came too fast to be shown; the trace goes on behind them"));
      WC_RETURN_IF_ERROR(Print(context.json ? TraceJson(*trace) : TraceText(*trace)));
      place = trace->first + trace->messages.size();
      if (!watch_ && trace->messages.size() < protocol::kMaxTraced) return Status::Ok();
    }
    return Status::Ok();
  }

  bool watch_ = false;
  bool trace_ = false;
  bool settings_markdown_ = false;
};

}  // namespace

std::unique_ptr<Command> MakeInfoCommand() { return std::make_unique<InfoCommand>(); }

}  // namespace weightcast::tools
