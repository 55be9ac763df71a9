#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "fake_ibverbs/fabric.h"
#include "verbs_cluster/process.h"

namespace weightcast::transport::verbs {

enum class Part { kTrainer, kInference };

/// One process of this part with `peers` of the other one.
class Cluster {
 public:
  Cluster(Part part, uint32_t peers, int nics);
  ~Cluster();
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;

  /// Links to all, and a chunk over each.
  void Run();
  /// What that took, as a row of a table; a bound that is broken is an error.
  void Print() const;

 private:
  void Connect(uint32_t i);
  /// The trainer's chunk, to a place of its own.
  void Write(uint32_t i);
  void Compare() const;
  template <typename Done>
  void Until(std::string_view what, const Done& done);

  Part part_;
  int nics_;
  fake::Fabric fabric_{{.virtual_time = true}};
  std::unique_ptr<Process> one_;
  std::vector<std::unique_ptr<Process>> others_;
  size_t descriptors_ = 0;  ///< Of the transport.
  uint64_t own_registered_ = 0;
  int64_t alone_ = 0;  ///< Heap, bytes: of the transport without a link,
  int64_t links_ = 0;  ///< and of all links.
};

}  // namespace weightcast::transport::verbs
