#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "drivers/cuda/cuda.h"
#include "drivers/cuda/load.h"

namespace weightcast::drivers {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

bool InProcess() { return dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD) != nullptr; }

TEST(LoadCuda, SaysWhichLibraryIsMissingAndWhatToDo) {
  const auto loaded = LoadCudaFrom("libcuda-of-nobody.so.9", "ask somebody");
  ASSERT_FALSE(loaded.ok());
  EXPECT_EQ(loaded.status().code(), Code::kUnavailable);
  EXPECT_THAT(loaded.status().message(),
              AllOf(HasSubstr("libcuda-of-nobody.so.9 cannot be loaded"), HasSubstr("ask somebody")));
}

TEST(LoadCuda, SaysWhichFunctionIsMissing) {
  const auto loaded = LoadCudaFrom("libm.so.6", "");
  ASSERT_FALSE(loaded.ok());
  EXPECT_EQ(loaded.status().code(), Code::kUnavailable);
  EXPECT_THAT(loaded.status().message(),
              AllOf(HasSubstr("libm.so.6 has no cuInit"), HasSubstr("driver 525 or newer")));
}

TEST(LoadCuda, IsNotLoadedForWhoeverUsesNoGpu) {
  if (InProcess()) GTEST_SKIP() << "libcuda is in this process";
  unsetenv(kCudaLibraryVariable);
  const auto loaded = LoadCuda(CudaUse::kIfInProcess);
  ASSERT_FALSE(loaded.ok());
  EXPECT_EQ(loaded.status().code(), Code::kUnavailable);
  EXPECT_THAT(loaded.status().message(),
              AllOf(HasSubstr("this process does not use CUDA"), HasSubstr("put something on a GPU first")));
  EXPECT_FALSE(InProcess());
}

TEST(LoadCuda, SaysWhereTheDriverComesFromWhenAsked) {
  unsetenv(kCudaLibraryVariable);
  const auto loaded = LoadCuda(CudaUse::kAsked);
  if (loaded.ok()) GTEST_SKIP() << "this machine has a driver";
  EXPECT_EQ(loaded.status().code(), Code::kUnavailable);
  EXPECT_THAT(loaded.status().message(), AllOf(HasSubstr("libcuda.so.1 cannot be loaded"),
                                               HasSubstr("NVIDIA's driver"), HasSubstr("--gpus all")));
}

TEST(LoadCuda, TheVariableNamesALibraryForEverybody) {
  if (InProcess()) GTEST_SKIP() << "libcuda is in this process";
  setenv(kCudaLibraryVariable, "/nowhere/libcuda.so.1", 1);
  const auto loaded = LoadCuda(CudaUse::kIfInProcess);
  unsetenv(kCudaLibraryVariable);
  ASSERT_FALSE(loaded.ok());
  EXPECT_THAT(loaded.status().message(),
              AllOf(HasSubstr("/nowhere/libcuda.so.1 cannot be loaded"),
                    HasSubstr("WEIGHTCAST_CUDA_LIBRARY names it"), HasSubstr("or unset it")));
}

}  // namespace
}  // namespace weightcast::drivers
