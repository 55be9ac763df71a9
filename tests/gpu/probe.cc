// Experiments with the CUDA driver whose outcome decides something in src/device and src/transport/shm
// (docs/performance.md, "GPU: predicted").
//
//   probe all         every experiment, at most 60 s together
//   probe e4 e7 ...   some of them
//
// One line of JSON for each. Figures are never an error: the status is 1 only if an experiment itself failed.
// Each runs in a process of its own, which is killed by its pid when its time is over. Nothing of the
// devices' settings is changed, and nothing of NVLink multicast is used.

#include <sys/resource.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "gpu/probe/driver.h"
#include "gpu/probe/experiments.h"
#include "gpu/probe/exporter.h"
#include "gpu/probe/peer.h"
#include "gpu/probe/report.h"

// What the static libgcc and libstdc++ want from glibc 2.35 and 2.36, so that 2.34 is enough. Neither is
// called: this program has no exceptions and no random_device.
#define WC_UNUSED extern "C" __attribute__((visibility("hidden")))
WC_UNUSED int _dl_find_object(void*, struct dl_find_object*) noexcept { return -1; }  // NOLINT
WC_UNUSED uint32_t arc4random() noexcept { std::abort(); }                            // NOLINT

namespace probe {
namespace {

struct Experiment {
  const char* name;
  void (*run)();
  double limit;  ///< Seconds.
};

constexpr Experiment kExperiments[] = {
    {"e2", SeveralSources, 15},  {"e4", ManyTensors, 12},      {"e6", SmallWrites, 12},
    {"e7", FlagsBehindData, 18}, {"e8", MappingCosts, 12},     {"e9", LostExporters, 25},
    {"e10", KilledWriters, 25},  {"e11", ReadOnlyMapping, 10}, {"e12", BlockedCalls, 20},
    {"e13", FabricHandles, 10},
};
constexpr double kAllSeconds = 60;

const Experiment* Find(const std::string& name) {
  const auto* const found = std::find_if(std::begin(kExperiments), std::end(kExperiments),
                                         [&](const Experiment& one) { return name == one.name; });
  return found == std::end(kExperiments) ? nullptr : found;
}

/// Prints a line in place of the experiment's own.
void PrintMissing(const Experiment& experiment, const std::string& why) {
  Report report{.experiment = experiment.name};
  std::transform(report.experiment.begin(), report.experiment.end(), report.experiment.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  report.note = why;
  Print(report);
}

/// Whether the experiment came to its end.
bool RunApart(const Experiment& experiment, double seconds) {
  Peer process({"run", experiment.name});
  const auto begin = Clock::now();
  const auto status = process.Wait(seconds);
  std::fprintf(stderr, "probe: %s took %.1f s\n", experiment.name, SecondsSince(begin));
  if (!status) {
    PrintMissing(experiment, "it was ended after " + Text(seconds) + " s");
    return false;
  }
  if (*status != 0) PrintMissing(experiment, "it failed, see standard error");
  return *status == 0;
}

int RunAll(const std::vector<const Experiment*>& experiments) {
  bool all_ran = true;
  const auto begin = Clock::now();
  for (const Experiment* const experiment : experiments) {
    const double left = kAllSeconds - SecondsSince(begin);
    if (left < 2) {
      PrintMissing(*experiment, "no time is left of " + Text(kAllSeconds) + " s");
      continue;
    }
    all_ran &= RunApart(*experiment, std::min(left, experiment->limit));
  }
  return all_ran ? 0 : 1;
}

/// One process of an experiment. It ends without destructors: the driver gives back what it had.
int RunRole(const std::string& role, const std::vector<std::string>& arguments) {
  if (role == "run" && Find(arguments.at(0)) != nullptr) Find(arguments.at(0))->run();
  if (role == "exporter") RunExporter(std::atoi(arguments.at(0).c_str()));
  if (role == "importer") RunImporter(arguments);
  if (role == "writer") RunWriter(arguments);
  std::fflush(stdout);
  return 0;
}

int Usage() {
  std::fprintf(stderr, "usage: probe all | ");
  for (const Experiment& one : kExperiments) std::fprintf(stderr, "%s ", one.name);
  std::fprintf(stderr, "\n");
  return 2;
}

int Main(const std::vector<std::string>& words) {
  const rlimit no_core{0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  if (words.size() >= 2) {
    for (const char* const role : {"run", "exporter", "importer", "writer"})
      if (words[0] == role) return RunRole(role, {words.begin() + 1, words.end()});
  }
  std::vector<const Experiment*> chosen;
  for (const std::string& word : words) {
    if (word == "all") {
      for (const Experiment& one : kExperiments) chosen.push_back(&one);
    } else if (Find(word) != nullptr) {
      chosen.push_back(Find(word));
    } else {
      return Usage();
    }
  }
  return chosen.empty() ? Usage() : RunAll(chosen);
}

}  // namespace
}  // namespace probe

int main(int argc, char** argv) { return probe::Main({argv + 1, argv + argc}); }
