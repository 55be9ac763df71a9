#include "weightcast/worker.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "weightcast/settings.h"
#include "weightcast/tensor.h"

// For explain_test.py: a trainer or an engine of one rank that does what it is told on standard input,
// late on request, and slow by what is done to its process from outside.
//   explain_worker trainer CONTROLLER RANK WORLD TENSORS ROWS COLUMNS
//       "publish NUMBER LATE_MS": publishes so many milliseconds from now; prints "done NUMBER" or the error
//   explain_worker engine CONTROLLER NAME DTYPE TENSORS ROWS COLUMNS
//       "late MS": lets the next update wait so long; prints "version NUMBER" for each
namespace {

using namespace weightcast;

constexpr auto kLimit = std::chrono::seconds(120);

/// Float32, or what the engine has: then trainers cast.
class Model {
 public:
  Model(DType dtype, int64_t tensors, int64_t rows, int64_t columns) {
    const size_t bytes = dtype == DType::kF32 ? 4 : 2;
    memory_.resize(static_cast<size_t>(tensors * rows * columns) * bytes);
    for (int64_t i = 0; i < tensors; ++i) {
      Shard shard;
      shard.tensor = {.name = "layer." + std::to_string(i), .dtype = dtype, .shape = {rows, columns}};
      shard.part = WholeOf(shard.tensor.shape);
      shard.memory = HostMemory(std::span(memory_).subspan(static_cast<size_t>(i * rows * columns) * bytes,
                                                           static_cast<size_t>(rows * columns) * bytes));
      shards_.push_back(shard);
    }
  }
  [[nodiscard]] Registration registration() const { return {.shards = shards_}; }

 private:
  std::vector<std::byte> memory_;
  std::vector<Shard> shards_;
};

int Fail(const std::string& what) {
  std::cout << "error " << what << std::endl;
  return 1;
}

int RunTrainer(const std::vector<std::string>& words) {
  const Model model(DType::kF32, std::stoll(words[5]), std::stoll(words[6]), std::stoll(words[7]));
  WorkerOptions options;
  options.controller = words[2];
  options.rank = static_cast<uint32_t>(std::stoul(words[3]));
  options.world_size = static_cast<uint32_t>(std::stoul(words[4]));
  auto trainer = Trainer::Connect(options);
  if (!trainer.ok()) return Fail(trainer.status().ToString());
  if (const Status status = (*trainer)->Register(model.registration()); !status.ok())
    return Fail(status.ToString());
  std::cout << "registered" << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream in(line);
    std::string word;
    int64_t number = 0;
    int64_t late = 0;
    in >> word >> number >> late;
    std::this_thread::sleep_for(std::chrono::milliseconds(late));
    auto update = (*trainer)->Publish(number);
    if (!update.ok()) return Fail(update.status().ToString());
    const auto stats = (*update)->Wait(Clock::now() + kLimit);
    if (!stats.ok()) return Fail(stats.status().ToString());
    std::cout << "done " << number << std::endl;
  }
  (*trainer)->Close();
  return 0;
}

int RunEngine(const std::vector<std::string>& words) {
  const DType dtype = words[4] == "F32" ? DType::kF32 : DType::kBF16;
  const Model model(dtype, std::stoll(words[5]), std::stoll(words[6]), std::stoll(words[7]));
  std::atomic<bool> stop{false};
  std::atomic<int64_t> late{0};
  WorkerOptions options;
  options.controller = words[2];
  options.engine = words[3];
  options.interrupted = [&] { return stop.load(); };
  auto engine = Inference::Connect(options);
  if (!engine.ok()) return Fail(engine.status().ToString());
  if (const Status status = (*engine)->Register(model.registration(), {.landing = LandingMode::kInPlace});
      !status.ok())
    return Fail(status.ToString());
  std::cout << "registered" << std::endl;
  std::thread listener([&] {
    for (std::string line; std::getline(std::cin, line);) late = std::stoll(line.substr(5));
    stop = true;
  });
  // The engine is between two calls of Wait while it is late: it generates.
  Version version;
  while (!stop) {
    const auto next = (*engine)->Wait(version, Clock::now() + std::chrono::milliseconds(20));
    if (next.ok()) {
      version = *next;
      std::cout << "version " << version.number << std::endl;
    } else if (next.status().code() != Code::kTimedOut && !stop) {
      std::cout << "error " << next.status().ToString() << std::endl;
    }
    if (const int64_t wait = late.exchange(0); wait > 0) {
      std::cout << "late" << std::endl;
      std::this_thread::sleep_for(std::chrono::milliseconds(wait));
    }
  }
  listener.join();
  (*engine)->Close();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv, argv + argc);
  if (words.size() != 8) return Fail("see the head of tests/explain/worker.cc");
  return words[1] == "trainer" ? RunTrainer(words) : RunEngine(words);
}
