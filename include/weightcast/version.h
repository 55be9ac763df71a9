#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace weightcast {

/// Names a published state of all weights of one model. The run is new whenever the trainers start again, so
/// that a resumed step 80 supersedes a lost step 100.
struct Version {
  uint64_t run = 0;
  int64_t number = -1;  ///< -1: none yet.
  /// Which controller counted the run; 0: not said. Two controllers that know nothing of each other may give
  /// one run and number to different bytes. Set by the library.
  uint64_t origin = 0;
  /// What trainer 0 said of it to Publish, such as "step-80"; comes with the version wherever it goes. UTF-8,
  /// at most 256 bytes.
  std::string label{};
  /// Equal versions are equal bytes. Labels are not compared.
  friend bool operator==(const Version& a, const Version& b) {
    return a.run == b.run && a.number == b.number && a.origin == b.origin;
  }
};

/// Whether `a` supersedes `b`: a later run does, and within a run a greater number; any version supersedes
/// none. Nothing: two controllers have counted their runs, so that neither is known to be newer. An origin
/// that is not said counts as the other's.
std::optional<bool> Newer(const Version& a, const Version& b);

/// "80" for run 1, "2:80" for later runs, "none" for number -1.
std::string ToString(const Version& version);

/// Release of this library, "0.1.0".
const char* LibraryVersion();

}  // namespace weightcast
