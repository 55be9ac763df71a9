#include <algorithm>

#include "base/strings.h"
#include "tools/bench/floor.h"
#include "tools/command.h"
#include "tools/common/json.h"
#include "tools/common/output.h"

namespace weightcast::tools {
namespace {

constexpr uint64_t kPingBytes = 8;
constexpr uint64_t kMostBytes = uint64_t{1} << 36;

class BenchFloorCommand : public Command {
 public:
  BenchFloorCommand()
      : Command({.name = "bench floor",
                 .summary = "What this machine allows: plain copies and sockets",
                 .example = R"(  weightcast bench floor
  weightcast bench floor --what cross,socket --sizes 64K,1M,16M
)",
                 .hidden = true}) {}
  void Declare(Flags& flags) override {
    flags.AddList("--what", what_, "NAMES",
                  "memcpy; stream: non-temporal; cross: process_vm_writev; cross-huge: into huge pages; "
                  "socket: TCP on loopback; socket-ping, flag-ping: 8 bytes one way, spinning");
    flags.AddList("--sizes", sizes_, "SIZES", "Bytes of a copy; ping-pongs always take 8");
    flags.Add("--milliseconds", milliseconds_, 1, 600'000, "For each measurement, about");
  }
  Status Run(const Context& context) override {
    WC_ASSIGN_OR_RETURN(const auto cases, Cases());
    std::vector<FloorResult> results;
    ProgressBar bar;
    for (const FloorCase& one : cases) {
      bar.Show(static_cast<double>(results.size()) / static_cast<double>(cases.size()),
               StrCat(one.what, " ", one.bytes, " bytes"));
      WC_ASSIGN_OR_RETURN(const FloorResult result,
                          MeasureFloor(one, static_cast<double>(milliseconds_) / 1000));
      results.push_back(result);
    }
    bar.Clear();
    return Print(context.json ? AsJson(results) : AsText(results));
  }

 private:
  Result<std::vector<FloorCase>> Cases() const {
    std::vector<FloorCase> cases;
    const auto& known = FloorNames();
    for (const std::string& what : what_) {
      if (std::find(known.begin(), known.end(), what) == known.end())
        return Error(Code::kInvalidArgument, "--what has '", what,
                     "'; allowed: memcpy, stream, cross, cross-huge, socket, socket-ping, flag-ping");
      if (what.ends_with("-ping")) {
        cases.push_back({what, kPingBytes});
        continue;
      }
      for (const std::string& size : sizes_) {
        Settings parser;  // Knows how numbers of bytes are written.
        if (!parser.Set("staging", size).ok() || parser.staging == 0 || parser.staging > kMostBytes)
          return Error(Code::kInvalidArgument, "--sizes has '", size,
                       "', which is not a size; write bytes up to 64G, such as 64K or 16M");
        cases.push_back({what, parser.staging});
      }
    }
    return cases;
  }

  static std::string AsText(const std::vector<FloorResult>& results) {
    Table table({"what", "bytes", "GB/s", "p50 us", "p99 us"});
    for (const FloorResult& one : results)
      table.Add({one.what.what, Grouped(one.what.bytes), Decimal(one.gb_per_s, 2), Decimal(one.p50_us, 2),
                 Decimal(one.p99_us, 2)});
    return table.ToString();
  }

  static std::string AsJson(const std::vector<FloorResult>& results) {
    Json json{{"results", Json::array()}};
    for (const FloorResult& one : results)
      json["results"].push_back({{"what", one.what.what},
                                 {"bytes", one.what.bytes},
                                 {"gb_per_s", one.gb_per_s},
                                 {"p50_us", one.p50_us},
                                 {"p99_us", one.p99_us}});
    return JsonLine(json);
  }

  std::vector<std::string> what_ = FloorNames();
  std::vector<std::string> sizes_{"8", "64K", "1M", "16M", "256M", "1G"};
  int64_t milliseconds_ = 500;
};

}  // namespace

std::unique_ptr<Command> MakeBenchFloorCommand() { return std::make_unique<BenchFloorCommand>(); }

}  // namespace weightcast::tools
