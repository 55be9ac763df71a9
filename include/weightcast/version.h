#pragma once

#include <compare>
#include <cstdint>
#include <string>

namespace weightcast {

/// The user's label of a published state of all weights of one model. The run is new
/// whenever the trainers start again, so that a resumed step 80 supersedes a lost step 100:
/// versions compare by run first.
struct Version {
  uint64_t run = 0;
  int64_t number = -1;  ///< -1: none yet.
  /// Set by the library: which controller counted the run. No part of the label: two controllers that know
  /// nothing of each other may give one label to different bytes.
  uint64_t origin = 0;
  friend bool operator==(const Version& a, const Version& b) {
    return a.run == b.run && a.number == b.number;
  }
  friend auto operator<=>(const Version& a, const Version& b) {
    return a.run != b.run ? a.run <=> b.run : a.number <=> b.number;
  }
};

/// "80" for run 1, "2:80" for later runs, "none" for number -1.
std::string ToString(const Version& version);

/// Release of this library, "0.1.0".
const char* LibraryVersion();

}  // namespace weightcast
