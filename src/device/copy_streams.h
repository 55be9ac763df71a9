#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "device/copy_queue.h"
#include "device/health.h"
#include "device/kernels.h"

namespace weightcast::device {

/// One word per slot of a queue, in pinned memory: holds the ticket of the slot's last batch that is over.
class CompletionWords {
 public:
  explicit CompletionWords(void* host) : words_(static_cast<std::atomic<uint64_t>*>(host)) {}
  /// The worker has read the whole batch. Before the device can write its word: C++ knows of no device, so
  /// this is what orders those reads before progress uses the batch's slot again.
  void Begin(uint64_t ticket) { begun_.store(ticket, std::memory_order_seq_cst); }
  [[nodiscard]] bool Over(uint64_t ticket) const {
    // Sequentially consistent, as WakeSignal: what the worker has seen to be over, progress sees after Arm.
    return Word(ticket).load(std::memory_order_seq_cst) == ticket &&
           begun_.load(std::memory_order_seq_cst) >= ticket;
  }
  [[nodiscard]] std::atomic<uint64_t>& Word(uint64_t ticket) const {
    return words_[(ticket % CopyLimits::kBatches) * kStride];
  }
  /// A cache line each.
  static constexpr size_t kStride = 8;
  static constexpr size_t kBytes = CopyLimits::kBatches * kStride * sizeof(uint64_t);

 private:
  std::atomic<uint64_t>* words_;
  std::atomic<uint64_t> begun_{0};  ///< The newest ticket that was.
};

/// The driver's half of a queue: streams, words and events. wc-device only. What Close has not taken back is
/// left to the end of the process: a copy may still use it.
class CopyStreams {
 public:
  CopyStreams(std::shared_ptr<Health> health, std::shared_ptr<KernelLoader> loader,
              const CopyQueueOptions& options);
  CopyStreams(const CopyStreams&) = delete;
  CopyStreams& operator=(const CopyStreams&) = delete;

  [[nodiscard]] bool open() const { return words_ != nullptr; }
  Status Open();
  void Close();
  [[nodiscard]] const CompletionWords& words() const { return *words_; }

  /// Copies, then the ticket's word, then the ticket's event. A failure may have begun some of it.
  Status Begin(uint64_t ticket, std::span<const Copy> first, std::span<const Copy> second);
  /// Asks the ticket's event; where the device writes no words, writes the word of one that is over.
  Result<bool> AskEvent(uint64_t ticket);
  /// After a failure: whether everything is over that was begun, the failed batch's part included.
  Result<bool> EverythingOver();
  [[nodiscard]] bool writes_words() const { return writes_words_; }

 private:
  Status OpenStreams();
  Status OpenWords();
  Status WriteWord(uint64_t ticket, drivers::CUstream stream);
  [[nodiscard]] bool Launches(std::span<const Copy> first, std::span<const Copy> second);
  Status FindKernel();
  Status CopyByKernel(drivers::CUstream stream, size_t count);
  Status CopyBatch(drivers::CUstream stream, size_t count);
  Status CopyEach(drivers::CUstream stream, size_t count);
  [[nodiscard]] drivers::CUstream StreamOf(uint64_t ticket) const {
    return streams_[ticket % streams_.size()];
  }
  [[nodiscard]] drivers::CUevent& EventOf(uint64_t ticket) { return events_[ticket % CopyLimits::kBatches]; }
  void Gather(std::span<const Copy> copies, size_t at);

  const std::shared_ptr<Health> health_;
  const std::shared_ptr<KernelLoader> loader_;
  const CopyQueueOptions options_;
  bool writes_words_;
  bool batches_;
  bool launches_;                     ///< False: there are no kernels.
  std::shared_ptr<Kernels> kernels_;  ///< Once they were wanted.
  drivers::CUfunction copy_list_{};   ///< Of them.
  std::vector<drivers::CUstream> streams_;
  std::array<drivers::CUevent, CopyLimits::kBatches> events_{};
  std::vector<drivers::CUevent> covers_;  ///< One per stream, behind everything that was begun there.
  size_t covered_ = 0;                    ///< How many of them are recorded.
  void* pinned_ = nullptr;
  drivers::CUdeviceptr device_words_ = 0;
  std::unique_ptr<CompletionWords> words_;
  // The batch being begun, as the driver wants it.
  std::vector<drivers::CUdeviceptr> to_;
  std::vector<drivers::CUdeviceptr> from_;
  std::vector<size_t> lengths_;
};

}  // namespace weightcast::device
