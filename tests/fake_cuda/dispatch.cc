#include "fake_cuda/dispatch.h"

#include <sys/mman.h>
#include <unistd.h>

#include <new>
#include <utility>

namespace weightcast::fake_cuda {

Reply Dispatch(Machine& machine, Engine& engine, Client& client, const Request& request, int& fd) {
  if (request.kind >= Ask::kHold) return engine.Serve(request);
  const int given = std::exchange(fd, -1);
  int moved = given;
  const Reply reply = machine.Serve(client, request, moved);
  if (moved != given) fd = moved;
  return reply;
}

// Pages of zeros are an Area in its first state.
Area* NewArea(int fd) {
  const int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
  if (fd >= 0 && ftruncate(fd, sizeof(Area)) != 0) Wrong("machine", "no memory for a process");
  void* const memory = mmap(nullptr, sizeof(Area), PROT_READ | PROT_WRITE, flags | MAP_NORESERVE, fd, 0);
  if (memory == MAP_FAILED) Wrong("machine", "no memory for a process");
  return static_cast<Area*>(memory);
}

void DropArea(Area* area) { munmap(area, sizeof(Area)); }

}  // namespace weightcast::fake_cuda
