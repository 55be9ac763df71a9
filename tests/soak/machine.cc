#include "soak/machine.h"

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <thread>

#include "base/strings.h"

namespace weightcast::soak {

Machine::Machine(unsigned seed, unsigned delay_us) {
  if (::mkdtemp(folder_.data()) == nullptr) throw std::runtime_error("cannot make a machine's folder");
  config_ = StrCat("dir=", folder_, ",gpus=2,seed=", seed, ",delay_us=", delay_us);
}

Machine::~Machine() {
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

bool Machine::EndsEmpty() const {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (!std::filesystem::is_empty(folder_)) {
    if (std::chrono::steady_clock::now() > limit) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace weightcast::soak
