#include <algorithm>

#include "base/statistics.h"
#include "base/strings.h"
#include "tools/bench/connect.h"
#include "tools/bench/processes.h"
#include "tools/command.h"
#include "tools/common/json.h"
#include "tools/common/output.h"
#include "tools/common/stop.h"

namespace weightcast::tools {
namespace {

constexpr int64_t kMostProcesses = 1024;

struct ConnectTimes {
  std::string transport;
  std::vector<double> together;  ///< Seconds, by round.
  std::vector<double> one;       ///< Seconds of one connection between two fresh endpoints.
};

class BenchConnectCommand : public Command {
 public:
  BenchConnectCommand()
      : Command(
            {.name = "bench connect",
             .summary = "Times connections: many processes at once, and one after another",
             .example =
                 R"(  weightcast bench connect                                  32 x 32 connections, each way
  weightcast bench connect --processes 16 --transports tcp
)",
             .hidden = true}) {}
  void Declare(Flags& flags) override {
    flags.Add("--processes", all_.processes, 2, kMostProcesses,
              "One half listens, and each of the other half connects to all of these");
    flags.AddList("--transports", transports_, "NAMES",
                  "shm, tcp; any: what --transport allows, tried side by side");
    flags.Add("--rounds", all_.rounds, 1, 1000, "With fresh endpoints each");
    flags.Add("--samples", one_.rounds, 1, 100'000, "Of one connection between two processes");
  }
  Status Run(const Context& context) override {
    for (const std::string& transport : transports_) {
      if (transport != "shm" && transport != "tcp" && transport != "any")
        return Error(Code::kInvalidArgument, "--transports has '", transport, "'; allowed: shm, tcp, any");
    }
    WC_ASSIGN_OR_RETURN(const Settings settings, Settings::From(PatientSettings(context)));
    std::vector<ConnectTimes> results;
    for (const std::string& transport : transports_) {
      WC_ASSIGN_OR_RETURN(ConnectTimes times, MeasureOver(transport, settings));
      results.push_back(std::move(times));
    }
    return Print(context.json ? AsJson(results) : AsText(results));
  }

 private:
  Result<ConnectTimes> MeasureOver(const std::string& transport, const Settings& settings) {
    all_.transport = one_.transport = transport;
    one_.processes = 2;
    ProgressBar bar;
    const auto measure = [&](const ConnectCase& what) {
      return MeasureConnect(what, settings, [&](size_t round) {
        bar.Show(static_cast<double>(round) / static_cast<double>(what.rounds),
                 StrCat(transport, ", ", what.processes, " processes"));
      });
    };
    ConnectTimes times{.transport = transport, .together = {}, .one = {}};
    WC_ASSIGN_OR_RETURN(const auto together, measure(all_));
    for (const ConnectRound& round : together) times.together.push_back(round.together);
    WC_ASSIGN_OR_RETURN(const auto one, measure(one_));
    for (const ConnectRound& round : one) times.one.push_back(round.calls);
    return times;
  }

  std::string AsText(const std::vector<ConnectTimes>& results) const {
    Table table({"transport", "connections", "median s", "least s", "most s", "one p50 ms", "one p99 ms"});
    for (const ConnectTimes& one : results) {
      const auto [least, most] = std::minmax_element(one.together.begin(), one.together.end());
      table.Add({one.transport, Grouped(static_cast<uint64_t>(all_.connections())),
                 Decimal(Median(one.together), 3), Decimal(*least, 3), Decimal(*most, 3),
                 Decimal(Median(one.one) * 1e3, 2), Decimal(Quantile(one.one, 0.99) * 1e3, 2)});
    }
    return StrCat(all_.connecting(), " processes connect to ", all_.listening(), ", ", all_.rounds,
                  " rounds; then one connection, ", one_.rounds, " times\n", table.ToString());
  }

  std::string AsJson(const std::vector<ConnectTimes>& results) const {
    Json json{{"processes", all_.processes},
              {"connections", all_.connections()},
              {"rounds", all_.rounds},
              {"samples", one_.rounds},
              {"results", Json::array()}};
    for (const ConnectTimes& one : results) {
      const auto [least, most] = std::minmax_element(one.together.begin(), one.together.end());
      json["results"].push_back({{"transport", one.transport},
                                 {"median_seconds", Median(one.together)},
                                 {"least_seconds", *least},
                                 {"most_seconds", *most},
                                 {"one_p50_ms", Median(one.one) * 1e3},
                                 {"one_p99_ms", Quantile(one.one, 0.99) * 1e3}});
    }
    return JsonLine(json);
  }

  ConnectCase all_;
  ConnectCase one_{.transport = {}, .processes = 2, .rounds = 200};
  std::vector<std::string> transports_{"any", "shm", "tcp"};
};

}  // namespace

std::unique_ptr<Command> MakeBenchConnectCommand() { return std::make_unique<BenchConnectCommand>(); }

}  // namespace weightcast::tools
