#include <algorithm>

#include "base/strings.h"
#include "tools/bench/p2p/hosts.h"
#include "tools/bench/p2p/measure.h"
#include "tools/bench/p2p/memory.h"
#include "tools/bench/processes.h"
#include "tools/command.h"
#include "tools/common/json.h"
#include "tools/common/output.h"
#include "tools/common/place.h"
#include "tools/common/stop.h"

namespace weightcast::tools {
namespace {

constexpr int64_t kMostPairs = 128;

/// "64K", "200x64K": pieces and their length.
Result<P2pCase> ParseSize(const std::string& text) {
  const size_t x = text.find('x');
  P2pCase one;
  Settings parser;  // Knows how numbers of bytes are written.
  const auto bytes = [&parser](const std::string& number) -> std::optional<uint64_t> {
    if (!parser.Set("staging", number).ok()) return std::nullopt;
    return parser.staging;
  };
  const auto pieces =
      x == std::string::npos ? std::optional<uint64_t>(1) : ParseNumber<uint64_t>(text.substr(0, x));
  const auto length = bytes(x == std::string::npos ? text : text.substr(x + 1));
  if (!pieces || !length || *pieces == 0 || *length == 0 || *pieces > 1'000'000 ||
      *length > (uint64_t{1} << 36)) {
    return Error(Code::kInvalidArgument, "--sizes has '", text,
                 "', which is not a size; write bytes up to 64G, such as 64K, or pieces, such as 200x64K");
  }
  one.iovs = *pieces;
  one.piece_bytes = *length;
  return one;
}

Status CheckKnown(std::string_view option, const std::vector<std::string>& given,
                  std::initializer_list<std::string_view> allowed) {
  for (const std::string& one : given)
    if (std::find(allowed.begin(), allowed.end(), one) == allowed.end())
      return Error(Code::kInvalidArgument, option, ": '", one,
                   "' is not allowed; allowed: ", Join(allowed, ", "));
  return Status::Ok();
}

class BenchP2pCommand : public Command {
 public:
  BenchP2pCommand()
      : Command({.name = "bench p2p",
                 .summary = "Bandwidth and latency between two processes, of this machine or of two",
                 .example = R"(  weightcast bench p2p
  weightcast bench p2p --transports shm --memories mapped --sizes 1M,200x64K --milliseconds 2000
  weightcast bench p2p --memory cuda --devices 0,1                 between the memories of two GPUs
  weightcast bench p2p --both --pairs 4 --sizes 1M                 eight processes, all directions
  weightcast bench p2p --listen 7000                               on one host, and on another:
  weightcast bench p2p --connect first-host:7000
)"}) {}
  void Declare(Flags& flags) override {
    flags.AddList("--transports", transports_, "NAMES",
                  "shm, tcp; without it: both, with --connect tcp alone");
    flags.AddList(
        "--memories,--memory", memories_, "KINDS",
        "mapped: memory both sides map; any: anonymous pages; huge: the same in huge pages; cuda: a "
        "GPU's memory, by cuMemAlloc; cuda-pages: the same in handles of 2 MiB. On GPUs write and "
        "read only");
    flags.AddList("--devices", devices_, "NUMBERS",
                  "GPUs whose memory the processes use, in turn; without it the first two, or the only one");
    flags.AddList(
        "--ops", ops_, "OPS",
        "write, read, send (each meets a recv that waits), ping (a write that the peer, looking at its "
        "memory, answers by another: half of both; 8 to 1024 bytes), signal (the same by writes that tell "
        "the peer of themselves)");
    flags.AddList("--sizes", sizes_, "SIZES", "Bytes of a transfer, or pieces that lie apart: 200x64K");
    flags.Add("--milliseconds", milliseconds_, 1, 600'000, "For each measurement, about");
    flags.Add("--both", options_.both, "Both directions at once; GB/s is their sum");
    flags.Add("--pairs", options_.pairs, 1, kMostPairs, "Pairs of processes at once; GB/s is their sum");
    flags.Add(
        "--reuse", options_.reuse,
        "The same bytes every time, and no process reads them: from cache to cache. Without it the source "
        "writes new bytes for each transfer and the target reads them once, both untimed");
    flags.Add("--listen", listen_, "[HOST:]PORT",
              "Lend this host's half of each pair to --connect, until Ctrl-C. Other addresses than "
              "loopback need a token");
    flags.Add("--connect", options_.connect, "HOST:PORT", "Measure with the other half of each pair there");
  }
  Status Run(const Context& context) override {
    // Many processes on few cores.
    WC_ASSIGN_OR_RETURN(options_.settings, Settings::From(PatientSettings(context)));
    if (!listen_.empty()) return Listen(context);
    WC_RETURN_IF_ERROR(ParseDevices());
    WC_ASSIGN_OR_RETURN(const auto groups, Groups());
    std::vector<P2pResult> results;
    ProgressBar bar;
    const size_t all = groups.size() * groups.front().size();
    options_.seconds = static_cast<double>(milliseconds_) / 1000;
    for (const auto& cases : groups) {
      WC_RETURN_IF_ERROR(MeasureP2p(cases, options_, [&](const P2pResult& result) {
        results.push_back(result);
        bar.Show(static_cast<double>(results.size()) / static_cast<double>(all),
                 StrCat(result.what.transport, " ", result.what.memory, " ", result.what.op, " ",
                        result.what.bytes(), " bytes"));
      }));
      WC_RETURN_IF_ERROR(CheckStop());
    }
    bar.Clear();
    return Print(context.json ? AsJson(results) : AsText(results));
  }

 private:
  Status ParseDevices() {
    const bool some = std::any_of(memories_.begin(), memories_.end(), OfDevice);
    if (!devices_.empty() && !some)
      return {Code::kInvalidArgument, "--devices is for --memory cuda or cuda-pages; add one of them"};
    for (const std::string& text : devices_) {
      WC_ASSIGN_OR_RETURN(const uint32_t device, ParseDevice("--devices", text));
      options_.devices.push_back(device);
    }
    return Status::Ok();
  }

  /// Cases that share two processes: of one transport and one kind of memory.
  Result<std::vector<std::vector<P2pCase>>> Groups() const {
    WC_RETURN_IF_ERROR(CheckKnown("--memories", memories_, {"mapped", "any", "huge", "cuda", "cuda-pages"}));
    WC_RETURN_IF_ERROR(CheckKnown("--ops", ops_, {"write", "read", "send", "ping", "signal"}));
    if (std::any_of(memories_.begin(), memories_.end(), OfDevice))
      WC_RETURN_IF_ERROR(CheckKnown("--ops with memory of a device", ops_, {"write", "read"}));
    if (options_.both) WC_RETURN_IF_ERROR(CheckKnown("--ops with --both", ops_, {"write", "read"}));
    std::vector<std::string> transports = transports_;
    if (transports.empty())
      transports =
          options_.connect.empty() ? std::vector<std::string>{"shm", "tcp"} : std::vector<std::string>{"tcp"};
    std::vector<std::vector<P2pCase>> groups;
    for (const std::string& transport : transports) {
      for (const std::string& memory : memories_) {
        auto& cases = groups.emplace_back();
        for (const std::string& op : ops_) {
          for (const std::string& size : sizes_) {
            WC_ASSIGN_OR_RETURN(P2pCase one, ParseSize(size));
            if (AnswerTo(op) && !IsPing(one.piece_bytes, one.iovs)) continue;
            one.transport = transport;
            one.memory = memory;
            one.op = op;
            cases.push_back(std::move(one));
          }
        }
      }
    }
    if (groups.empty() || groups.front().empty())
      return Status(
          Code::kInvalidArgument,
          "nothing to measure: pings and signals need --sizes from 8 to 1024 bytes that are multiples of 8");
    return groups;
  }

  Status Listen(const Context& context) const {
    if (!options_.connect.empty())
      return {Code::kInvalidArgument,
              "both --listen and --connect were given; give one of them on each host"};
    return ServeParties(listen_, options_.settings, [&](std::string_view address) {
      return Print(context.json ? JsonLine({{"address", address}}) : StrCat("listening at ", address, "\n"));
    });
  }

  /// "cuda 0-1"
  static std::string Place(const P2pResult& one) {
    std::string place = one.what.memory;
    for (const int32_t device : one.devices) place += StrCat(place == one.what.memory ? " " : "-", device);
    return place;
  }

  static std::string AsText(const std::vector<P2pResult>& results) {
    Table table({"transport", "memory", "op", "bytes", "pieces", "GB/s", "p50 us", "p99 us"});
    for (const P2pResult& one : results) {
      table.Add({one.what.transport, Place(one), one.what.op, Grouped(one.what.bytes()),
                 StrCat(one.what.iovs), Decimal(one.gb_per_s, 2), Decimal(one.p50_us, 2),
                 Decimal(one.p99_us, 2)});
    }
    return table.ToString();
  }

  [[nodiscard]] std::string AsJson(const std::vector<P2pResult>& results) const {
    Json json{{"results", Json::array()}};
    for (const P2pResult& one : results) {
      Json& member = json["results"].emplace_back(Json{{"transport", one.what.transport},
                                                       {"memory", one.what.memory},
                                                       {"op", one.what.op},
                                                       {"bytes", one.what.bytes()},
                                                       {"iovs", one.what.iovs},
                                                       {"transfers", one.transfers},
                                                       {"gb_per_s", one.gb_per_s},
                                                       {"p50_us", one.p50_us},
                                                       {"p99_us", one.p99_us}});
      if (!one.devices.empty()) member["devices"] = one.devices;
      if (options_.both) member["both"] = true;
      if (options_.pairs > 1) member["pairs"] = options_.pairs;
      if (options_.reuse) member["reuse"] = true;
    }
    return JsonLine(json);
  }

  std::vector<std::string> transports_;
  std::vector<std::string> memories_{"mapped", "any"};
  std::vector<std::string> ops_{"write", "read"};
  std::vector<std::string> sizes_{"8", "64K", "1M", "16M", "256M", "1G", "200x64K"};
  std::vector<std::string> devices_;
  int64_t milliseconds_ = 500;
  std::string listen_;
  P2pOptions options_;
};

}  // namespace

std::unique_ptr<Command> MakeBenchP2pCommand() { return std::make_unique<BenchP2pCommand>(); }

}  // namespace weightcast::tools
