#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/log.h"
#include "tests/model/configs.h"
#include "tests/model/search.h"

// model_checker [CONFIG [KEY=VALUE ...]]: searches one configuration, or all; see docs/model_checker.md.
namespace weightcast::model {
namespace {

int Usage() {
  std::fprintf(stderr, "model_checker list | NAME [KEY=VALUE ...] [progress] [levels] [expect=PROPERTY]\n");
  return 2;
}

void Print(const Config& config, const Outcome& outcome) {
  std::printf(
      "%s: %llu states, %llu moves, depth %u%s in %s, %.1f s, %.0f states/s; fair schedule from %llu states; "
      "%llu random steps\n",
      config.name.c_str(), static_cast<unsigned long long>(outcome.states),
      static_cast<unsigned long long>(outcome.moves), outcome.depth,
      outcome.complete ? " (all there are)" : "", config.search == Search::kMoves ? "moves" : "departures",
      outcome.seconds, static_cast<double>(outcome.states) / outcome.seconds,
      static_cast<unsigned long long>(outcome.lived), static_cast<unsigned long long>(outcome.walked));
  if (!outcome.violation) return;
  std::printf("VIOLATION (%s): %s\n%s", outcome.violation->property.c_str(), outcome.violation->text.c_str(),
              outcome.trace.c_str());
}

void PrintLevels(const Outcome& outcome) {
  for (size_t depth = 0; depth < outcome.levels.size(); ++depth)
    std::printf("  depth %zu: %llu states, sum of fingerprints %016llx\n", depth,
                static_cast<unsigned long long>(outcome.levels[depth].states),
                static_cast<unsigned long long>(outcome.levels[depth].fingerprints));
}

int Main(const std::vector<std::string>& arguments) {
  if (arguments.empty()) return Usage();
  if (arguments[0] == "list") {
    for (const Config& config : AllConfigs()) std::printf("%s\n", config.name.c_str());
    return 0;
  }
  Config config;
  if (!FindConfig(arguments[0], config)) return Usage();
  std::string expected;
  bool say = false, levels = false;
  for (size_t i = 1; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    const size_t at = argument.find('=');
    if (argument == "progress") {
      say = true;
    } else if (argument == "levels") {
      levels = true;
    } else if (argument.rfind("expect=", 0) == 0) {
      expected = argument.substr(at + 1);
      std::replace(expected.begin(), expected.end(), '_', ' ');
    } else if (at == std::string::npos || !Set(config, argument.substr(0, at), argument.substr(at + 1))) {
      return Usage();
    }
  }
  const Outcome outcome = Explore(config, say);
  Print(config, outcome);
  if (levels) PrintLevels(outcome);
  if (expected.empty()) return outcome.violation ? 1 : 0;
  const bool found = outcome.violation && (expected == "any" || outcome.violation->property == expected);
  if (!found) std::printf("expected a violation of '%s'\n", expected.c_str());
  return found ? 0 : 1;
}

}  // namespace
}  // namespace weightcast::model

int main(int count, char** arguments) { return weightcast::model::Main({arguments + 1, arguments + count}); }
