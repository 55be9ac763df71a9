// A short run of a fuzz target without libFuzzer, for every compiler and sanitizer: all seeds, then changed
// ones. The same ones every time: what crashed is found again by its number.
//
//     brief_NAME FOLDER_OF_SEEDS RUNS
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

using Bytes = std::vector<uint8_t>;

std::atomic<unsigned long long> run = 0;

void OnCrash(int) {
  char text[64];
  const int size = std::snprintf(text, sizeof text, "crashed in run %llu\n", run.load());
  [[maybe_unused]] const ssize_t ignored = write(STDERR_FILENO, text, static_cast<size_t>(size));
  _exit(1);  // A test that a signal ends fails, also one that is meant to crash.
}

std::vector<Bytes> SeedsOf(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> paths;
  if (std::filesystem::exists(folder)) {
    for (const auto& entry : std::filesystem::directory_iterator(folder)) paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  std::vector<Bytes> seeds{{}};
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary);
    seeds.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return seeds;
}

class Mutator {
 public:
  explicit Mutator(std::vector<Bytes> seeds) : seeds_(std::move(seeds)) {}

  Bytes Next() {
    Bytes bytes = seeds_[Below(seeds_.size())];
    for (size_t changes = 1 + Below(4); changes > 0; --changes) Change(bytes);
    return bytes;
  }

 private:
  size_t Below(size_t limit) { return std::uniform_int_distribution<size_t>(0, limit - 1)(random_); }

  void Change(Bytes& bytes) {
    const size_t at = Below(bytes.size() + 1);
    const auto here = bytes.begin() + static_cast<ptrdiff_t>(at);
    switch (Below(7)) {
      case 0:
        bytes.insert(here, static_cast<uint8_t>(Below(256)));
        return;
      case 1:
        bytes.resize(at);
        return;
      case 2: {  // From another seed.
        const Bytes& other = seeds_[Below(seeds_.size())];
        const size_t from = Below(other.size() + 1);
        bytes.insert(here, other.begin() + static_cast<ptrdiff_t>(from), other.end());
        return;
      }
      default:
        break;
    }
    if (at == bytes.size()) return;
    switch (Below(4)) {
      case 0:
        bytes[at] ^= static_cast<uint8_t>(1U << Below(8));
        return;
      case 1:
        bytes.erase(here);
        return;
      case 2: {  // Numbers at which limits lie.
        constexpr uint8_t kEdges[] = {0, 1, 0x7f, 0x80, 0xff};
        const size_t size = std::min(size_t{1} << Below(4), bytes.size() - at);
        std::fill_n(here, size, kEdges[Below(std::size(kEdges))]);
        return;
      }
      default:
        bytes[at] = static_cast<uint8_t>(Below(256));
    }
  }

  const std::vector<Bytes> seeds_;
  std::mt19937_64 random_{1};
};

}  // namespace

int main(int count, char** words) {
  if (count != 3) return 2;
  for (const int signal : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE}) std::signal(signal, OnCrash);
  const std::vector<Bytes> seeds = SeedsOf(words[1]);
  for (const Bytes& seed : seeds) LLVMFuzzerTestOneInput(seed.data(), seed.size());
  Mutator mutator(seeds);
  const unsigned long long runs = std::strtoull(words[2], nullptr, 10);
  for (run = 1; run <= runs; ++run) {
    const Bytes bytes = mutator.Next();
    LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
  }
  std::printf("%zu seeds, %llu changed inputs\n", seeds.size() - 1, runs);
  return 0;
}
