// Sizes, offsets and signatures of src/drivers/cuda beside those of a real cuda.h. values.cc, which CMake
// writes, compares the enumerators.
#include "drivers/cuda/abi.h"
#include "drivers/cuda/functions.h"

// After ours: it has macros of some of our names.
#include <cuda.h>

#include <type_traits>

namespace ours = weightcast::drivers;

#define SAME_SIZE(type) \
  static_assert(sizeof(ours::type) == sizeof(::type) && alignof(ours::type) == alignof(::type))
#define SAME_FIELD(type, field)                                          \
  static_assert(offsetof(ours::type, field) == offsetof(::type, field)); \
  static_assert(sizeof(ours::type{}.field) == sizeof(::type{}.field))

SAME_SIZE(CUdeviceptr);
SAME_SIZE(CUdevice);
SAME_SIZE(CUcontext);
SAME_SIZE(CUresult);
SAME_SIZE(CUmemGenericAllocationHandle);
SAME_SIZE(CUuuid);
SAME_SIZE(CUipcMemHandle);
SAME_SIZE(CUmemFabricHandle);
SAME_SIZE(CUmemLocation);
SAME_FIELD(CUmemLocation, type);
SAME_FIELD(CUmemLocation, id);
SAME_SIZE(CUmemAccessDesc);
SAME_FIELD(CUmemAccessDesc, location);
SAME_FIELD(CUmemAccessDesc, flags);
SAME_SIZE(CUmemAllocationProp);
SAME_FIELD(CUmemAllocationProp, type);
SAME_FIELD(CUmemAllocationProp, requestedHandleTypes);
SAME_FIELD(CUmemAllocationProp, location);
SAME_FIELD(CUmemAllocationProp, win32HandleMetaData);
SAME_FIELD(CUmemAllocationProp, allocFlags);
SAME_FIELD(CUmemAllocationProp, allocFlags.compressionType);
SAME_FIELD(CUmemAllocationProp, allocFlags.gpuDirectRDMACapable);
SAME_FIELD(CUmemAllocationProp, allocFlags.usage);
#if CUDA_VERSION >= 12080
SAME_SIZE(CUmemcpyAttributes);
SAME_FIELD(CUmemcpyAttributes, srcAccessOrder);
SAME_FIELD(CUmemcpyAttributes, srcLocHint);
SAME_FIELD(CUmemcpyAttributes, dstLocHint);
SAME_FIELD(CUmemcpyAttributes, flags);
#endif

namespace {

/// Whether two types are passed alike: the same size, and both pointers or neither. Pointers to complete
/// types must point to types of the same size.
template <typename A, typename B>
constexpr bool Alike() {
  using To = std::remove_pointer_t<A>;
  using From = std::remove_pointer_t<B>;
  if constexpr (sizeof(A) != sizeof(B) || std::is_pointer_v<A> != std::is_pointer_v<B>) {
    return false;
  } else if constexpr (!std::is_pointer_v<A> || std::is_void_v<To> || std::is_void_v<From>) {
    return std::is_void_v<To> == std::is_void_v<From>;
  } else if constexpr (requires { sizeof(To) == sizeof(From); }) {
    return sizeof(To) == sizeof(From);
  } else {
    return true;  // Handles.
  }
}

template <typename A, typename B>
constexpr bool kAlike = false;
template <typename R, typename... A, typename S, typename... B>
  requires(sizeof...(A) == sizeof...(B))
constexpr bool kAlike<R(A...), S(B...)> = sizeof(R) == sizeof(S) && (Alike<A, B>() && ...);

}  // namespace

namespace weightcast::drivers {

#define WC_COMPARE(method, symbol, parameters, arguments) \
  static_assert(kAlike<CUresult parameters, decltype(::symbol)>, #symbol);
WC_CUDA_NEEDED(WC_COMPARE)
WC_CUDA_WANTED(WC_COMPARE)
static_assert(kAlike<GetProcAddress, decltype(::cuGetProcAddress)>);
#if CUDA_VERSION >= 13000
static_assert(kAlike<MemcpyBatchAsync13, decltype(::cuMemcpyBatchAsync)>);
#elif CUDA_VERSION >= 12080
static_assert(kAlike<MemcpyBatchAsync12, decltype(::cuMemcpyBatchAsync)>);
#endif

}  // namespace weightcast::drivers
