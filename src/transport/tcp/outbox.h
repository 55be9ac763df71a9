#pragma once

#include "transport/tcp/own_operations.h"
#include "transport/tcp/replies.h"
#include "transport/tcp/send_batch.h"
#include "transport/tcp/send_stage.h"

namespace weightcast::transport::tcp {

/// The sending half of a lane: takes from own operations and replies what goes into the socket next.
class Outbox {
 public:
  Outbox(OwnOperations& operations, Replies& replies, SendStage& stage)
      : operations_(operations), replies_(replies), stage_(stage) {}

  /// Sends what the socket takes; sets `moved` if it took anything. kBlocked: there is more to send. kFailed:
  /// errno.
  SendBatch::Outcome Flush(int socket, bool& moved);
  /// Lets a region go that the peer may be reading.
  void Forget(const LocalRegion& region);

 private:
  void Fill();
  void LoadAhead();

  OwnOperations& operations_;
  Replies& replies_;
  SendStage& stage_;
  SendBatch batch_;
};

}  // namespace weightcast::transport::tcp
