#include "base/thread.h"

#include <algorithm>
#include <atomic>
#include <future>
#include <system_error>
#include <utility>
#include <vector>

#include "base/process.h"
#include "base/strings.h"

namespace weightcast {

Result<std::thread> StartThread(const char* name, std::function<void()> body) {
  try {
    return std::thread([name, body = std::move(body)] {
      NameThread(name);
      body();
    });
  } catch (const std::system_error& error) {
    return Error(Code::kExhausted, "cannot start the thread ", name, ": ", error.code().message(),
                 "; raise the limit of processes (ulimit -u, or the container's)");
  }
}

Status CheckThreads(size_t wanted) {
  std::promise<void> enough;
  const auto end = enough.get_future().share();
  std::vector<std::thread> threads;
  Status status;
  while (status.ok() && threads.size() < wanted) {
    auto thread = StartThread("wc-check", [end] { end.wait(); });
    status = thread.status();
    if (thread.ok()) threads.push_back(std::move(*thread));
  }
  enough.set_value();
  for (std::thread& thread : threads) thread.join();
  if (status.ok()) return status;
  return Error(status.code(), "this process can start only ", threads.size(), " more threads and needs ",
               wanted, "; raise the limit of processes (ulimit -u, or the container's)");
}

void ForEachInParallel(size_t count, size_t threads, const std::function<void(size_t)>& task) {
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t i = next++; i < count; i = next++) task(i);
  };
  std::vector<std::thread> helpers;
  for (size_t i = 1; i < std::min(count, threads); ++i) {
    auto helper = StartThread("wc-helper", work);
    if (!helper.ok()) break;
    helpers.push_back(std::move(*helper));
  }
  work();
  for (auto& helper : helpers) helper.join();
}

}  // namespace weightcast
