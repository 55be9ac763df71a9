#pragma once

#include <cstdint>

#include "worker/inference_machine.h"
#include "worker/peer_source_machine.h"
#include "worker/trainer_machine.h"

/// The workers' counterpart of control::Fingerprint, and that of messages: equal ones have equal ones, others
/// very probably not.
namespace weightcast::model {

uint64_t Fingerprint(const protocol::WorkerMessage& message);
uint64_t Fingerprint(const protocol::ControllerMessage& message);
uint64_t Fingerprint(const worker::InferenceState& state);
uint64_t Fingerprint(const worker::PeerSourceState& state);
uint64_t Fingerprint(const worker::TrainerState& state);

}  // namespace weightcast::model
