#include "base/thread.h"

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

}  // namespace weightcast
