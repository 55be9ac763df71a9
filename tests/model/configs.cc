#include "tests/model/configs.h"

#include <cstdlib>
#include <map>

namespace weightcast::model {
namespace {

using protocol::Landing;

/// One trainer, one engine of two ranks: every interleaving, deep. Its adversary only delays; whoever wants
/// more sets budgets.
Config Deep(std::string name, Landing landing) {
  Config config;
  config.name = std::move(name);
  config.landing = landing;
  return config;
}

/// Two trainers, one engine of one rank: two boxes to complete.
Config Wide(std::string name, Landing landing) {
  Config config = Deep(std::move(name), landing);
  config.trainers = 2;
  config.ranks = 1;
  return config;
}

/// One trainer, two engines of one rank: an engine may get what it lacks from the other.
Config Peers(std::string name, Landing landing) {
  Config config = Deep(std::move(name), landing);
  config.engines = 2;
  config.ranks = 1;
  config.together = false;
  return config;
}

/// The same, but one engine comes later, and may give before trainers do.
Config Late(std::string name, Landing landing) {
  Config config = Peers(std::move(name), landing);
  config.late = true;
  config.budgets.restarts = 1;
  return config;
}

/// Two trainers that hold the same, one engine of one rank: one trainer can do what the other began.
Config Replicas(std::string name, Landing landing) {
  Config config = Wide(std::move(name), landing);
  config.replicas = true;
  return config;
}

/// Two trainers, two engines of two ranks: departures from the fair schedule.
Config Broad(std::string name, Landing landing, bool together) {
  Config config;
  config.name = std::move(name);
  config.trainers = config.engines = config.ranks = 2;
  config.landing = landing;
  config.together = together;
  config.search = Search::kDepartures;
  config.live_every = 16;
  config.budgets = {.kills = 2,
                    .restarts = 2,
                    .stops = 1,
                    .breaks = 1,
                    .controller = 1,
                    .timeouts = 2,
                    .expiries = 1,
                    .interrupts = 1,
                    .gives_up = 1,
                    .cancels = 1,
                    .registers = 1,
                    .paths = 1,
                    .repeats = 1,
                    .stragglers = 0,
                    .holds = 2};
  return config;
}

Config Loader(Config config) {
  config.loader = true;
  config.budgets.refusals = 1;
  return config;
}

/// Weights in the memory of GPUs.
Config Pulled(Config config) {
  config.name = "pull_" + config.name;
  config.pull = true;
  return config;
}

/// Engines hand on one box before they grant the other.
Config InParts(Config config) {
  config.phases = true;
  config.parts = 2;
  return config;
}

}  // namespace

std::vector<Config> AllConfigs() {
  std::vector<Config> all;
  all.push_back(Deep("deep_in_place", Landing::kInPlace));
  all.push_back(Deep("deep_shadow", Landing::kShadow));
  all.push_back(Loader(Deep("deep_loader", Landing::kShadow)));
  all.push_back(InParts(Deep("deep_parts", Landing::kInPlace)));
  all.push_back(InParts(Wide("wide_parts", Landing::kInPlace)));
  all.push_back(Wide("wide_in_place", Landing::kInPlace));
  all.push_back(Wide("wide_shadow", Landing::kShadow));
  all.push_back(Loader(Wide("wide_loader", Landing::kShadow)));
  all.push_back(Peers("peers_in_place", Landing::kInPlace));
  all.push_back(Peers("peers_shadow", Landing::kShadow));
  all.push_back(Late("late_in_place", Landing::kInPlace));
  all.push_back(Late("late_shadow", Landing::kShadow));
  all.push_back(Replicas("replicas_in_place", Landing::kInPlace));
  all.push_back(Replicas("replicas_shadow", Landing::kShadow));
  all.push_back(Broad("in_place_all", Landing::kInPlace, true));
  all.push_back(Broad("in_place_each", Landing::kInPlace, false));
  all.push_back(Broad("shadow_all", Landing::kShadow, true));
  all.push_back(Broad("shadow_each", Landing::kShadow, false));
  all.push_back(InParts(Broad("parts_all", Landing::kInPlace, true)));
  all.push_back(InParts(Broad("parts_each", Landing::kInPlace, false)));
  all.push_back(Loader(Broad("loader_each", Landing::kShadow, false)));
  all.push_back(Pulled(Deep("deep_in_place", Landing::kInPlace)));
  all.push_back(Pulled(Deep("deep_shadow", Landing::kShadow)));
  all.push_back(Pulled(Wide("wide_in_place", Landing::kInPlace)));
  all.push_back(Pulled(Wide("wide_shadow", Landing::kShadow)));
  all.push_back(Pulled(InParts(Wide("wide_parts", Landing::kInPlace))));
  all.push_back(Pulled(Peers("peers_in_place", Landing::kInPlace)));
  all.push_back(Pulled(Peers("peers_shadow", Landing::kShadow)));
  all.push_back(Pulled(Replicas("replicas_shadow", Landing::kShadow)));
  all.push_back(Pulled(Broad("in_place_all", Landing::kInPlace, true)));
  all.push_back(Pulled(Broad("shadow_each", Landing::kShadow, false)));
  return all;
}

bool FindConfig(const std::string& name, Config& config) {
  for (Config& known : AllConfigs())
    if (known.name == name) {
      config = known;
      return true;
    }
  return false;
}

bool Set(Config& config, const std::string& key, const std::string& value) {
  const auto number = std::strtoull(value.c_str(), nullptr, 10);
  const std::map<std::string, uint8_t*> bytes = {
      {"trainers", &config.trainers},
      {"engines", &config.engines},
      {"ranks", &config.ranks},
      {"versions", &config.versions},
      {"parts", &config.parts},
      {"kills", &config.budgets.kills},
      {"restarts", &config.budgets.restarts},
      {"stops", &config.budgets.stops},
      {"breaks", &config.budgets.breaks},
      {"controller", &config.budgets.controller},
      {"rivals", &config.budgets.rivals},
      {"astray", &config.budgets.astray},
      {"timeouts", &config.budgets.timeouts},
      {"expiries", &config.budgets.expiries},
      {"interrupts", &config.budgets.interrupts},
      {"gives_up", &config.budgets.gives_up},
      {"cancels", &config.budgets.cancels},
      {"registers", &config.budgets.registers},
      {"paths", &config.budgets.paths},
      {"failures", &config.budgets.failures},
      {"repeats", &config.budgets.repeats},
      {"stragglers", &config.budgets.stragglers},
      {"refusals", &config.budgets.refusals},
      {"holds", &config.budgets.holds},
  };
  const std::map<std::string, bool*> flags = {
      {"together", &config.together}, {"hold", &config.hold},     {"verify", &config.verify},
      {"phases", &config.phases},     {"halves", &config.halves}, {"cold", &config.cold},
      {"loader", &config.loader},     {"runs", &config.runs},     {"late", &config.late},
      {"replicas", &config.replicas}, {"pull", &config.pull},
  };
  const std::map<std::string, uint32_t*> words = {
      {"depth", &config.depth}, {"live_every", &config.live_every}, {"live_steps", &config.live_steps},
      {"walks", &config.walks}, {"walk_steps", &config.walk_steps},
  };
  if (const auto at = bytes.find(key); at != bytes.end()) {
    *at->second = static_cast<uint8_t>(number);
  } else if (const auto flag = flags.find(key); flag != flags.end()) {
    *flag->second = number != 0;
  } else if (const auto word = words.find(key); word != words.end()) {
    *word->second = static_cast<uint32_t>(number);
  } else if (key == "states") {
    config.states = number;
  } else if (key == "seconds") {
    config.seconds = std::strtod(value.c_str(), nullptr);
  } else if (key == "seed") {
    config.seed = number;
  } else if (key == "landing") {
    config.landing = value == "shadow" ? Landing::kShadow : Landing::kInPlace;
  } else if (key == "search") {
    config.search = value == "departures" ? Search::kDepartures : Search::kMoves;
  } else {
    return false;
  }
  return true;
}

}  // namespace weightcast::model
