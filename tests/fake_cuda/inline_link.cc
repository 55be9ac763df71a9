#include <sys/mman.h>
#include <unistd.h>

#include "fake_cuda/dispatch.h"
#include "fake_cuda/engine.h"
#include "fake_cuda/link.h"
#include "fake_cuda/machine.h"

namespace weightcast::fake_cuda {
namespace {

class Inline final : public Link {
 public:
  explicit Inline(const Config& config)
      : area_(NewArea(-1)), machine_(config), engine_(machine_), client_(machine_.Join(getpid(), area_)) {}
  ~Inline() override { DropArea(area_); }

  Reply Send(const Request& request, int* fd) override {
    int none = -1;
    return Dispatch(machine_, engine_, client_, request, fd != nullptr ? *fd : none);
  }
  void Bell() override {}
  bool Step() override { return engine_.Step(); }
  Area& area() override { return *area_; }
  [[nodiscard]] int gpu_process() const override { return 0; }

 private:
  Area* const area_;
  Machine machine_;
  Engine engine_;
  Client& client_;
};

}  // namespace

std::unique_ptr<Link> InlineLink(const Config& config) { return std::make_unique<Inline>(config); }

}  // namespace weightcast::fake_cuda
