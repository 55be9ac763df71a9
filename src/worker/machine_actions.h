#pragma once

#include "wire/messages.h"

/// What both machines ask of their runtimes.
namespace weightcast::worker {

struct SendMessage {
  wire::WorkerMessage message;
  friend bool operator==(const SendMessage&, const SendMessage&) = default;
};
/// Sends Register and LandingMap, if the user has registered.
struct SendRegistration {
  friend bool operator==(const SendRegistration&, const SendRegistration&) = default;
};

}  // namespace weightcast::worker
