// Whatever the network brings, the decoders of control messages refuse it or take it for a message whose
// encoding it is, and spend no more memory than they say.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <string_view>

#include "protocol/codec.h"

namespace {

size_t allocated = 0;

}  // namespace

#ifdef __SANITIZE_ADDRESS__
#define WC_HAS_ASAN
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define WC_HAS_ASAN
#endif
#endif

#ifdef WC_HAS_ASAN
// ASan owns operator new and calls this.
extern "C" void __sanitizer_malloc_hook(const volatile void* /*memory*/, size_t size) { allocated += size; }
#else
namespace {

void* Allocate(size_t size) {
  allocated += size;
  void* const memory = std::malloc(size);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(size_t size) { return Allocate(size); }
void* operator new[](size_t size) { return Allocate(size); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }
#endif

namespace {

using namespace weightcast::protocol;  // NOLINT(google-build-using-namespace)

constexpr size_t kForErrors = 4096;

template <typename Decode>
auto Decoded(std::string_view bytes, Decode decode) {
  allocated = 0;
  auto message = decode(bytes);
  if (allocated > kMaxExpansion * bytes.size() + kForErrors) std::abort();
  return message;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto worker = Decoded(bytes, DecodeWorkerMessage);
  const auto controller = Decoded(bytes, DecodeControllerMessage);
  const auto observer = Decoded(bytes, DecodeObserverMessage);
  const auto reply = Decoded(bytes, DecodeObserverReply);
  if (int{worker.ok()} + int{controller.ok()} + int{observer.ok()} + int{reply.ok()} > 1) std::abort();
  if (observer.ok() && Encode(*observer) != bytes) std::abort();
  if (reply.ok() && Encode(*reply) != bytes) std::abort();
  if (controller.ok() && Encode(*controller) != bytes) std::abort();
  const auto* hello = worker.ok() ? std::get_if<Hello>(&*worker) : nullptr;
  const bool other_version = hello != nullptr && hello->protocol != kProtocolVersion;
  if (worker.ok() && !other_version && Encode(*worker) != bytes) std::abort();
  return 0;
}
