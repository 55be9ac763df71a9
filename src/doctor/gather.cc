#include "doctor/gather.h"

#include "doctor/facts_json.h"
#include "doctor/probe.h"

namespace weightcast::doctor {
namespace {

struct Gatherer {
  std::string_view name;  ///< The member of Facts that it fills.
  Duration limit;         ///< Where there is no such hardware it ends at once.
  void (*fill)(const Sources& sources, Facts& facts);
};

constexpr Duration kFiles = std::chrono::seconds(3);
/// Also a resolver whose first server does not answer.
constexpr Duration kNetwork = std::chrono::seconds(3);
constexpr Duration kDriver = std::chrono::seconds(5);
/// The first process on a machine with eight GPUs initialises them one by one.
constexpr Duration kGpuDriver = std::chrono::seconds(10);

constexpr Gatherer kGatherers[] = {
    {"host", kFiles, [](const Sources& sources, Facts& facts) { facts.host = GatherHost(sources); }},
    {"names", kNetwork, [](const Sources& sources, Facts& facts) { facts.names = GatherNames(sources); }},
    {"route", kNetwork, [](const Sources& sources, Facts& facts) { facts.route = GatherRoute(sources); }},
    {"clock", kNetwork, [](const Sources& sources, Facts& facts) { facts.clock = GatherClock(sources); }},
    {"limits", kFiles, [](const Sources& sources, Facts& facts) { facts.limits = GatherLimits(sources); }},
    {"modules", kFiles, [](const Sources& sources, Facts& facts) { facts.modules = GatherModules(sources); }},
    {"rdma", kFiles, [](const Sources& sources, Facts& facts) { facts.rdma = GatherRdma(sources); }},
    {"verbs", kDriver, [](const Sources& sources, Facts& facts) { facts.verbs = GatherVerbs(sources); }},
    {"qos", kFiles, [](const Sources& sources, Facts& facts) { facts.qos = GatherQos(sources); }},
    {"pcie", kFiles, [](const Sources& sources, Facts& facts) { facts.pcie = GatherPcie(sources); }},
    {"cpu", kFiles, [](const Sources& sources, Facts& facts) { facts.cpu = GatherCpu(sources); }},
    {"gpu", kFiles, [](const Sources& sources, Facts& facts) { facts.gpu = GatherGpu(sources); }},
    {"cuda", kGpuDriver, [](const Sources& sources, Facts& facts) { facts.cuda = GatherCuda(sources); }},
};

}  // namespace

Facts Gather(const Sources& sources) {
  std::vector<Probe> probes;
  for (const Gatherer& gatherer : kGatherers) {
    probes.push_back({gatherer.name, gatherer.limit, [&sources, &gatherer] {
                        Facts part;
                        gatherer.fill(sources, part);
                        return FactsJson(part);
                      }});
  }
  Facts facts;
  facts.environment = GatherEnvironment(sources);
  facts.settings = GatherSettings(sources);
  const auto results = RunProbes(probes);
  for (size_t i = 0; i < probes.size(); ++i) {
    const std::string name(probes[i].name);
    const Status added = results[i].ok() ? AddFacts(results[i].value(), name, facts) : results[i].status();
    if (!added.ok()) facts.missed[name] = added.message();
  }
  return facts;
}

}  // namespace weightcast::doctor
