// A whole update in one process: a controller, a trainer, an inference worker. Needs all of weightcast.
//
//   g++ -std=c++20 one_update.cc $(pkg-config --cflags --libs weightcast) -o one_update
#include <weightcast/worker.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <vector>

namespace wc = weightcast;

void Must(const wc::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::exit(1);
}
template <typename T>
T Must(wc::Result<T> result) {
  Must(result.status());
  return std::move(result).value();
}

/// All of one tensor of floats.
wc::Shard WholeTensor(std::vector<float>& values) {
  const wc::Shape shape = {static_cast<int64_t>(values.size())};
  return {.tensor = {.name = "weight", .dtype = wc::DType::kF32, .shape = shape},
          .part = wc::WholeOf(shape),
          .memory = wc::HostMemory(std::as_writable_bytes(std::span(values)))};
}

int main() {
  constexpr double kSeconds = 60;
  std::vector<float> trained(1 << 20, 0.0F);
  std::vector<float> served(1 << 20, 0.0F);

  const auto controller = Must(wc::Controller::Start({.listen = "127.0.0.1:0", .settings = {}}));
  wc::WorkerOptions options;
  options.controller = controller->address();
  const auto trainer = Must(wc::Trainer::Connect(options));
  Must(trainer->Register({.shards = {WholeTensor(trained)}}));
  options.engine = "rollout-0";
  const auto worker = Must(wc::Inference::Connect(options));
  Must(worker->Register({.shards = {WholeTensor(served)}}));

  std::ranges::fill(trained, 0.5F);  // A training step.
  const auto update = Must(trainer->Publish(1));
  const wc::Version version =
      Must(worker->Wait({}, wc::In(kSeconds)));  // The only moment at which `served` changes.
  const wc::UpdateStats stats = Must(update->Wait(wc::In(kSeconds)));
  std::printf("version %s: %.1f MB, %s\n", wc::ToString(version).c_str(),
              static_cast<double>(stats.bytes) / 1e6, served == trained ? "bit-exact" : "WRONG BYTES");
  return served == trained ? 0 : 1;
}
