#include "tools/explain/text.h"

#include <algorithm>
#include <array>
#include <ctime>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "base/strings.h"
#include "tools/common/json.h"
#include "tools/common/output.h"

namespace weightcast::tools {
namespace {

std::string ClockText(int64_t unix_ms) {
  const std::time_t seconds = unix_ms / 1000;
  std::tm parts{};
  localtime_r(&seconds, &parts);
  std::array<char, 16> text{};
  return {text.data(), std::strftime(text.data(), text.size(), "%H:%M:%S", &parts)};
}

std::string NameOf(const Json& update) {
  const auto label = update.at("label").get<std::string>();
  return StrCat(update.at("model").get<std::string>(), " version ", update.at("version").get<int64_t>(),
                label.empty() ? "" : StrCat(" (", label, ")"));
}

std::string VerdictText(const Json& update) {
  const Json& verdict = update.at("verdict");
  const bool ok = update.at("ok").get<bool>();
  const std::string head = ok ? "" : StrCat("failed: ", update.at("reason").get<std::string>(), "; ");
  return StrCat(head, verdict.at("slow").get<bool>() ? "slow, " : "", verdict.at("text").get<std::string>());
}

std::string CostsText(const Json& segment) {
  return Join(segment.at("costs"), ", ", [](const Json& cost) {
    const auto worker = cost.at("worker").get<std::string>();
    return StrCat(cost.at("cause").get<std::string>(), " ", Decimal(cost.at("seconds").get<double>(), 4),
                  worker.empty() ? "" : StrCat(" (", worker, ")"));
  });
}

std::string OneText(const Json& update) {
  std::string out = StrCat(NameOf(update), ": ", Decimal(update.at("seconds").get<double>(), 4), " s, ",
                           HumanBytes(update.at("bytes").get<double>()), ", began at ",
                           ClockText(update.at("began_unix_ms").get<int64_t>()), "\n  ", VerdictText(update),
                           "\n  to fix it: ", update.at("verdict").at("remedy").get<std::string>(), "\n\n");
  Table steps({"step", "waits for", "at", "seconds", "went into"});
  for (const Json& segment : update.at("path")) {
    const auto worker = segment.at("worker").get<std::string>();
    steps.Add({segment.at("step").get<std::string>(), worker.empty() ? "the controller" : worker,
               Decimal(segment.at("begin").get<double>(), 4), Decimal(segment.at("seconds").get<double>(), 4),
               CostsText(segment)});
  }
  return steps.empty() ? out : out + steps.ToString();
}

/// Events of one process of the trace are a worker's; of one thread, what cannot overlap.
class Trace {
 public:
  void Add(const Json& update) {
    start_ = update.at("began_unix_ms").get<double>() / 1e3;
    for (const Json& segment : update.at("path"))
      Event("critical path", NameOf(update), segment.at("step").get<std::string>(), segment.at("begin"),
            segment.at("seconds").get<double>(),
            {{"waits for", segment.at("worker")}, {"costs", segment.at("costs")}});
    for (const Json& rank : update.at("ranks")) AddRank(rank);
    for (const Json& source : update.at("sources")) AddSource(update, source);
    for (const Json& stall : update.at("stalls"))
      Event("controller", "stalls", "did not run", stall.at("begin"), stall.at("seconds").get<double>(), {});
    for (const Json& command : update.at("commands"))
      Between("EngineControl", command.at("engine").get<std::string>(),
              command.at("command").get<std::string>(), command.at("asked"), command.at("answered"));
  }
  [[nodiscard]] std::string Text() const {
    return JsonText(Json{{"traceEvents", events_}, {"displayTimeUnit", "ms"}});
  }

 private:
  using Kinds = std::vector<std::string>;

  void AddRank(const Json& rank) {
    const auto name = rank.at("name").get<std::string>();
    constexpr const char* kSteps = "as the controller saw it";
    for (const Json& part : rank.at("parts")) {
      Between(name, kSteps, "grant", part.at("asked"), part.at("granted"));
      Between(name, kSteps, "receive", part.at("started"), part.at("ready"));
    }
    Between(name, kSteps, "commit", rank.at("committing"), rank.at("committed"));
    Between(name, kSteps, "serve", rank.at("serve"), rank.at("serving"));
    if (rank.at("parts").empty()) return;
    const Json& last = rank.at("parts").back();
    Until(rank, {"pause", "reclaim", "open"}, last.at("granted"));
    Until(rank, {"receive", "fence", "verify"}, last.at("ready"));
    Until(rank, {"call", "switch", "process"}, rank.at("committed"));
  }

  /// Spans have a length and an order; the message that followed them says when they ended.
  void Until(const Json& rank, const Kinds& kinds, const Json& end) {
    if (end.is_null()) return;
    double at = end.get<double>();
    for (auto span = rank.at("spans").rbegin(); span != rank.at("spans").rend(); ++span) {
      const auto kind = span->at("kind").get<std::string>();
      if (std::ranges::find(kinds, kind) == kinds.end()) continue;
      const auto seconds = span->at("seconds").get<double>();
      at -= seconds;
      Event(rank.at("name").get<std::string>(), "as it measured", kind, at, seconds, *span);
    }
  }

  /// Sums of what took turns, one after the other, from the message on that began the sending.
  void AddSource(const Json& update, const Json& source) {
    std::map<std::string, double> at;
    for (const Json& rank : update.at("ranks"))
      for (const Json& part : rank.at("parts"))
        if (!part.at("started").is_null())
          at.try_emplace(rank.at("name").get<std::string>(), part.at("started").get<double>());
    const auto name = source.at("name").get<std::string>();
    if (!source.at("published").is_null())
      Event(name, "publications", "published", source.at("published"), 0, {});
    if (!source.at("started").is_null() && !source.at("waited").is_null()) {
      const auto waited = source.at("waited").get<double>();
      Event(name, "as it measured", "waits to be told to send", source.at("started").get<double>() - waited,
            waited, {});
    }
    for (const Json& span : source.at("spans")) {
      const auto to = span.at("to").get<std::string>();
      const auto seconds = span.at("seconds").get<double>();
      Event(name, "to " + to, span.at("kind").get<std::string>(), at[to], seconds, span);
      at[to] += seconds;
    }
  }

  void Between(const std::string& process, const std::string& thread, const std::string& name,
               const Json& begin, const Json& end) {
    if (begin.is_null() || end.is_null()) return;
    Event(process, thread, name, begin, end.get<double>() - begin.get<double>(), {});
  }

  void Event(const std::string& process, const std::string& thread, const std::string& name,
             const Json& begin, double seconds, const Json& arguments) {
    const int pid = NumberOf(processes_, process, [&](int number) {
      events_.push_back(
          {{"ph", "M"}, {"name", "process_name"}, {"pid", number}, {"args", {{"name", process}}}});
    });
    const int tid = NumberOf(threads_, {process, thread}, [&](int number) {
      events_.push_back({{"ph", "M"},
                         {"name", "thread_name"},
                         {"pid", pid},
                         {"tid", number},
                         {"args", {{"name", thread}}}});
    });
    events_.push_back({{"ph", "X"},
                       {"name", name},
                       {"pid", pid},
                       {"tid", tid},
                       {"ts", (start_ + begin.get<double>()) * 1e6},
                       {"dur", seconds * 1e6},
                       {"args", arguments.is_null() ? Json::object() : arguments}});
  }

  template <typename Map, typename Added>
  static int NumberOf(Map& map, const typename Map::key_type& key, const Added& added) {
    const auto [at, fresh] = map.try_emplace(key, static_cast<int>(map.size()) + 1);
    if (fresh) added(at->second);
    return at->second;
  }

  Json events_ = Json::array();
  double start_ = 0;
  std::map<std::string, int> processes_;
  std::map<std::pair<std::string, std::string>, int> threads_;
};

/// With the parsed updates; what throws says that the JSON is not as it should be.
template <typename Make>
Result<std::string> ParsedUpdates(std::string_view text, const Make& make) {
  try {
    return make(Json::parse(text));
  } catch (const Json::exception& error) {
    return Error(Code::kProtocol, "the controller's answer cannot be read (", error.what(),
                 "); use the same weightcast on all hosts");
  }
}

}  // namespace

Result<std::string> ExplainText(std::string_view json) {
  return ParsedUpdates(json, [](const Json& updates) {
    if (updates.empty()) return std::string("no update has ended yet\n");
    if (updates.size() == 1) return OneText(updates.front());
    std::string out;
    for (const Json& update : updates)
      out += StrCat(ClockText(update.at("began_unix_ms").get<int64_t>()), "  ", NameOf(update), "  ",
                    Decimal(update.at("seconds").get<double>(), 4), " s  ", VerdictText(update), "\n");
    return out;
  });
}

Result<std::string> ExplainTrace(std::string_view json) {
  return ParsedUpdates(json, [](const Json& updates) {
    Trace trace;
    for (const Json& update : updates) trace.Add(update);
    return trace.Text() + "\n";
  });
}

}  // namespace weightcast::tools
