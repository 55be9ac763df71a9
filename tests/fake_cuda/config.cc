#include "fake_cuda/config.h"

#include <cstdio>
#include <cstdlib>
#include <sstream>

namespace weightcast::fake_cuda {
namespace {

void ParsePeers(Config& config, const std::string& text) {
  const bool all = text == "all";
  for (int a = 0; a < kMaxGpus; ++a) {
    for (int b = 0; b < kMaxGpus; ++b) {
      config.peer[a][b] = all || a == b ? Peer::kWorks : Peer::kRefused;
    }
  }
  if (all || text == "none") return;
  std::istringstream pairs(text);
  std::string pair;
  while (std::getline(pairs, pair, '+')) {
    int a = -1;
    int b = -1;
    if (std::sscanf(pair.c_str(), "%d-%d", &a, &b) != 2 || a < 0 || b < 0 || a >= kMaxGpus || b >= kMaxGpus) {
      Wrong("FAKE_CUDA", "peer must be all, none or pairs such as 0-1+2-3, and is " + text);
    }
    config.peer[a][b] = config.peer[b][a] = Peer::kWorks;
  }
}

uint64_t Number(const std::string& key, const std::string& text, uint64_t most) {
  char* end = nullptr;
  const uint64_t value = std::strtoull(text.c_str(), &end, 10);
  if (text.empty() || *end != '\0' || value > most) {
    Wrong("FAKE_CUDA", key + " must be a number up to " + std::to_string(most) + ", and is '" + text + "'");
  }
  return value;
}

void Set(Config& config, const std::string& key, const std::string& value) {
  const auto number = [&](uint64_t most) { return Number(key, value, most); };
  if (key == "dir") {
    config.dir = value;
  } else if (key == "gpus") {
    config.gpus = static_cast<int>(number(kMaxGpus));
  } else if (key == "gib") {
    config.gib = number(64);
  } else if (key == "peer") {
    ParsePeers(config, value);
  } else if (key == "driver") {
    config.driver = static_cast<int>(number(99990));
  } else if (key == "cc") {
    config.cc = static_cast<int>(number(999));
  } else if (key == "imex") {
    config.imex = number(1) != 0;
  } else if (key == "writes") {
    config.writes = number(1) != 0;
  } else if (key == "dmabuf") {
    config.dmabuf = number(1) != 0;
  } else if (key == "ordering") {
    config.ordering = static_cast<int>(number(200));
  } else if (key == "hidden" && (value == "open" || value == "refuse")) {
    config.open_hidden = value == "open";
  } else if (key == "after_death_ms") {
    config.after_death_ms = static_cast<int>(number(60'000));
  } else if (key == "seed") {
    config.seed = number(UINT64_MAX);
  } else if (key == "delay_us") {
    config.delay_us = static_cast<uint32_t>(number(1'000'000));
  } else {
    Wrong("FAKE_CUDA", "there is no " + key + "=" + value);
  }
}

}  // namespace

void Wrong(const char* where, const std::string& sentence) {
  std::fprintf(stderr, "fake_cuda: %s: %s\n", where, sentence.c_str());
  std::fflush(stderr);
  std::abort();
}

Config Config::Parse(const std::string& text) {
  Config config;
  config.text = text;
  ParsePeers(config, "all");
  std::istringstream items(text);
  std::string item;
  while (std::getline(items, item, ',')) {
    const size_t equals = item.find('=');
    if (equals == std::string::npos) Wrong("FAKE_CUDA", "'" + item + "' is not key=value");
    Set(config, item.substr(0, equals), item.substr(equals + 1));
  }
  return config;
}

// As libcuda: the list ends at the first entry that is no device.
std::vector<int> VisibleDevices(int gpus) {
  std::vector<int> visible;
  const char* const list = std::getenv("CUDA_VISIBLE_DEVICES");
  if (list == nullptr) {
    for (int gpu = 0; gpu < gpus; ++gpu) visible.push_back(gpu);
    return visible;
  }
  std::istringstream items(list);
  std::string item;
  while (std::getline(items, item, ',')) {
    char* end = nullptr;
    const long gpu = std::strtol(item.c_str(), &end, 10);
    if (item.empty() || *end != '\0' || gpu < 0 || gpu >= gpus) break;
    visible.push_back(static_cast<int>(gpu));
  }
  return visible;
}

}  // namespace weightcast::fake_cuda
