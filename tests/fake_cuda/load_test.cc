// The loader of src/drivers/cuda, on this library.
#include "drivers/cuda/load.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "drivers/cuda/functions.h"
#include "fake_cuda/children.h"

namespace weightcast::fake_cuda {
namespace {

using ::testing::HasSubstr;

// Each in a process of its own: what is loaded stays.
TEST(LoadFakeCuda, TheVariableIsEnough) {
  Child child([](const Wire&) {
    setenv(kCudaLibraryVariable, FAKE_CUDA_LIBRARY, 1);
    const auto loaded = LoadCuda(CudaUse::kIfInProcess);
    ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
    unsetenv(kCudaLibraryVariable);
    EXPECT_EQ(LoadCuda(CudaUse::kAsked).value(), loaded.value());
    int version = 0;
    CU_OK((*loaded)->DriverGetVersion(&version));
    EXPECT_EQ(version, 13000);
    int count = 0;
    EXPECT_EQ((*loaded)->DeviceGetCount(&count), CUDA_ERROR_NOT_INITIALIZED);
    CU_OK((*loaded)->Init(0));
    CU_OK((*loaded)->DeviceGetCount(&count));
    EXPECT_EQ(count, 2);
  });
}

TEST(LoadFakeCuda, ALibcudaOfTheProcessIsTaken) {
  Child child([](const Wire&) {
    EXPECT_FALSE(LoadCuda(CudaUse::kIfInProcess).ok());
    ASSERT_NE(dlopen(EMPTY_CUDA_LIBRARY, RTLD_NOW), nullptr) << dlerror();
    const auto loaded = LoadCuda(CudaUse::kIfInProcess);
    ASSERT_FALSE(loaded.ok());
    EXPECT_THAT(loaded.status().message(), HasSubstr("libcuda.so.1 has no cuDriverGetVersion"));
  });
}

TEST(LoadFakeCuda, AProcessMayUseCudaLater) {
  Child child([](const Wire&) {
    EXPECT_FALSE(LoadCuda(CudaUse::kIfInProcess).ok());
    setenv(kCudaLibraryVariable, FAKE_CUDA_LIBRARY, 1);
    EXPECT_TRUE(LoadCuda(CudaUse::kIfInProcess).ok());
  });
}

TEST(LoadFakeCuda, ProcAddressAnswersAsTheDriver) {
  Host host("driver=12080");
  auto* const find =
      reinterpret_cast<GetProcAddress*>(dlsym(dlopen(FAKE_CUDA_LIBRARY, RTLD_NOW), "cuGetProcAddress_v2"));
  void* function = nullptr;
  auto status = CU_GET_PROC_ADDRESS_SUCCESS;
  CU_OK(find("cuMemcpyBatchAsync", &function, 12000, 0, &status));
  EXPECT_EQ(function, nullptr);
  EXPECT_EQ(status, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
  CU_OK(find("cuMemcpyBatchAsync", &function, 12080, 0, &status));
  EXPECT_NE(function, nullptr);
  EXPECT_EQ(find("cuMemcpyBatchAsync", &function, 13000, 0, &status), CUDA_ERROR_INVALID_VALUE);
  CU_OK(find("cuMemAlloc", &function, 12000, 0, &status));
  EXPECT_NE(function, nullptr);
  CU_OK(find("cuMulticastCreate", &function, 12080, 0, &status));
  EXPECT_EQ(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
}

}  // namespace
}  // namespace weightcast::fake_cuda
