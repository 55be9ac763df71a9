#pragma once

#include <cstdint>

#include "drivers/cuda/abi.h"

/// What libfake_cuda.so has beside libcuda's functions (docs/testing.md, "A GPU without GPUs"). Any thread.
/// `gpu` is the machine's number of a device, whatever CUDA_VISIBLE_DEVICES says; -1: all. `pid` 0: this
/// process.
#pragma GCC visibility push(default)
extern "C" {

struct FakeCudaLive {
  // The machine's, of one process or of all.
  uint64_t processes;
  uint64_t memories;  ///< Pieces of device memory and of host memory that cuMemHostAlloc gave.
  uint64_t bytes;     ///< Of device memory.
  uint64_t mappings;  ///< Of such memory at an address of a process.
  uint64_t exported;  ///< Descriptors of memory that are open.
  uint64_t dmabufs;   ///< The same of dma-bufs: whoever registered one keeps it open.
  uint64_t torn;      ///< Of all time: memory that was freed or unmapped while a dma-buf of it was open.
  uint64_t streams;   ///< With those that were destroyed and still run.
  // This process's own.
  uint64_t contexts;
  uint64_t reservations;
  uint64_t handles;
  uint64_t events;
  uint64_t pinned;  ///< Ranges of host memory.
  uint64_t modules;
};

// --- The machine
/// In place of FAKE_CUDA, before cuInit. Aborts where this process uses a machine already.
void fake_cuda_start(const char* config);
/// Ends this process's use of the machine, with all it has there; another may be started. 0, or how many
/// objects lived.
uint64_t fake_cuda_stop();
/// Inline: one piece of one stream. 0: nothing can run.
int fake_cuda_step(uint64_t seed);
/// The pid of the process that plays the GPU; 0: inline.
int fake_cuda_gpu_process();

// --- How streams run
void fake_cuda_hold(int gpu);
void fake_cuda_release(int gpu);
void fake_cuda_seed(uint64_t seed);
/// Not inline.
void fake_cuda_delay(uint32_t most_us);
/// 0 refused, 1 works, 2 garbage comes out.
void fake_cuda_peer(int from, int to, int mode);
/// The contexts of a process (-1: all) on a device are lost before the n-th piece (0: at once).
void fake_cuda_lose(int pid, int gpu, int error, uint64_t pieces);
/// Pieces that have run.
uint64_t fake_cuda_pieces();

// --- Calls
/// The n-th call from now on of this name ("cuMemAlloc": no _v2) gives that result and does nothing.
void fake_cuda_fail(int pid, const char* call, int nth, int result);
/// The n-th call blocks that long, with the driver's lock: all other calls of that process wait for it.
void fake_cuda_block(int pid, const char* call, int nth, int ms);
/// Ends such blocks before their time.
void fake_cuda_unblock(int pid);
/// Calls of that process that such a block holds up.
int fake_cuda_blocked(int pid);
/// Calls of this process by that name; null: all.
uint64_t fake_cuda_calls(const char* call);
/// Calls of this process that would have disturbed a stream's capture in another thread.
uint64_t fake_cuda_disturbing();

// --- What our table has no function for
/// cuMemAllocManaged and cuMemAllocAsync: memory that cannot be exported. cuMemFree frees it.
int fake_cuda_alloc_managed(weightcast::drivers::CUdeviceptr* address, size_t length);
int fake_cuda_alloc_pooled(weightcast::drivers::CUdeviceptr* address, size_t length);
/// What nvidia-peermem gives a NIC's driver for memory by its address, whatever `dmabuf` says: a descriptor
/// as a dma-buf's, the caller's; -1 for what is no plain device memory.
int fake_cuda_peermem(weightcast::drivers::CUdeviceptr address, size_t length);
/// cuStreamBeginCapture in the global mode, and its end: 0, or the error where the capture is void.
int fake_cuda_capture(weightcast::drivers::CUstream stream, int on);

// --- What exists
/// `pid` -1: the whole machine.
FakeCudaLive fake_cuda_live(int pid);
}
#pragma GCC visibility pop
