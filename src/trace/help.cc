#include <map>
#include <string_view>

#include "trace/metrics.h"

namespace weightcast::trace {
namespace {

// Also in docs/operations.md, "/metrics"; tests/python/test_metrics.py compares.
const std::map<std::string_view, std::string_view>& Helps() {
  static const auto* helps = new std::map<std::string_view, std::string_view>{
      {"control.bytes", "Bytes that all ranks together received in committed updates."},
      {"control.engine_state", "1 for the state that an engine is in."},
      {"control.engine_version", "The version that an engine serves; -1: no complete one."},
      {"control.engines_out", "Engines that left an update."},
      {"control.engines_refilled", "Engines that received the served version from other engines."},
      {"control.epoch", "Number of the plan."},
      {"control.messages_in", "Messages that the controller received."},
      {"control.messages_out", "Messages that the controller sent."},
      {"control.plan.seconds", "Time to make one plan."},
      {"control.repairs", "Updates that continued from other holders."},
      {"control.streams_broken", "Streams to workers that broke."},
      {"control.term", "The controller's term."},
      {"control.update.seconds", "Committed updates, from the first grant request to the last rank's Ready."},
      {"control.updates_committed", "Updates that met the policy."},
      {"control.updates_failed", "Updates that did not meet the policy."},
      {"control.updates_superseded", "Updates that a newer version replaced before they began."},
      {"control.version", "The last committed version of a model."},
      {"control.workers", "Workers with an open stream."},
      {"control.workers_left", "Workers that shut down gracefully."},
      {"control.workers_lost", "Workers that were declared dead."},
      {"endpoint.chunks_resent", "Chunks that were sent again, on other lanes."},
      {"endpoint.lanes_lost", "Lanes that failed."},
      {"endpoint.lanes_rebuilt", "Lanes that were rebuilt."},
      {"gpu.batch.seconds", "Time of one batch of copies on a GPU."},
      {"gpu.bytes", "Bytes that GPUs copied."},
      {"gpu.copies", "Copies that GPUs made."},
      {"gpu.host_casts", "Casts of device memory that the host computed."},
      {"gpu.host_digests", "Digests of device memory that the host computed."},
      {"gpu.kernels", "Kernels that were launched."},
      {"gpu.staged_bytes", "Bytes of device memory that went through pinned host memory."},
      {"gpu.voided_pulls", "Pulls by a target's GPU that a revoke made void."},
      {"inference.aborting.seconds", "Time to fence an aborted update."},
      {"inference.aborts", "Updates that this rank aborted."},
      {"inference.bytes", "Bytes that this rank received."},
      {"inference.committed.seconds", "Time from a rank's switch to Serve."},
      {"inference.fencing.seconds", "Time from the last byte until no late write can land."},
      {"inference.idle.seconds", "Time without an update."},
      {"inference.opening.seconds", "Time to open the memory for writes."},
      {"inference.ready.seconds", "Time that a complete rank waited for the others."},
      {"inference.requested.seconds", "Time that an update waited for the engine."},
      {"inference.state", "1 for the state that a rank is in."},
      {"inference.switched.seconds", "Time of the engine's post-processing."},
      {"inference.switching.seconds", "Time to copy what has landed into the live tensors."},
      {"inference.verifying.seconds", "Time to compare digests with the sources."},
      {"inference.version", "The version that a rank serves; -1: no complete one."},
      {"inference.writing.seconds", "Time that bytes arrived."},
      {"sender.bytes", "Bytes of this sender that arrived."},
      {"sender.stage.seconds", "Time to gather and cast one transfer."},
      {"shm.pulled_bytes", "Bytes that this process read out of writers' host memory on their order."},
      {"trainer.version", "The last version that a trainer published."},
  };
  return *helps;
}

}  // namespace

std::string_view HelpOf(std::string_view name) {
  const auto known = Helps().find(name);
  return known == Helps().end() ? std::string_view() : known->second;
}

}  // namespace weightcast::trace
