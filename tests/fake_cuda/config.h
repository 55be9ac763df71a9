#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fake_cuda/area.h"

namespace weightcast::fake_cuda {

enum class Peer : uint8_t { kRefused, kWorks, kGarbage };

/// What FAKE_CUDA says (docs/testing.md).
struct Config {
  std::string text;
  std::string dir;  ///< Empty: inline.
  int gpus = 2;
  uint64_t gib = 1;
  int driver = 13000;
  int cc = 90;
  bool imex = false;
  bool writes = true;
  bool dmabuf = true;
  int ordering = 100;
  bool open_hidden = true;
  int after_death_ms = 50;
  uint64_t seed = 1;
  uint32_t delay_us = 0;
  Peer peer[kMaxGpus][kMaxGpus]{};

  /// Ends the process with a sentence where the text is wrong.
  static Config Parse(const std::string& text);
};

/// CUDA_VISIBLE_DEVICES: the machine's number of each device that the process sees.
std::vector<int> VisibleDevices(int gpus);

/// Prints "fake_cuda: WHERE: SENTENCE" and aborts: the program is wrong.
[[noreturn]] void Wrong(const char* where, const std::string& sentence);

}  // namespace weightcast::fake_cuda
