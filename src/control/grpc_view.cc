#include <grpcpp/grpcpp.h>

#include <optional>
#include <utility>

#include "base/strings.h"
#include "control/client.h"
#include "control/grpc_channel.h"
#include "control/token.h"
#include "protocol/codec.h"
#include "wire/control.grpc.pb.h"

namespace weightcast::control {
namespace {

namespace pb = wire::pb;

constexpr auto kGoodbye = std::chrono::seconds(2);

enum Tag : intptr_t { kStart = 1, kRead, kFinish };
void* ToTag(Tag tag) { return reinterpret_cast<void*>(tag); }

class GrpcViewStream final : public ViewStream {
 public:
  GrpcViewStream(const Settings& settings, const Token& token)
      : address_(settings.controller),
        channel_(OpenChannel(address_, settings.lease)),
        stub_(pb::Control::NewStub(channel_)) {
    context_.AddMetadata("authorization", StrCat("Bearer ", token.secret));
    pb::WatchRequest request;
    request.set_protocol(protocol::kProtocolVersion);
    reader_ = stub_->AsyncWatch(&context_, request, &queue_, ToTag(kStart));
  }
  ~GrpcViewStream() override {
    context_.TryCancel();
    const TimePoint deadline = Clock::now() + kGoodbye;
    while (!over_ && Step(deadline)) {
    }
    queue_.Shutdown();
    while (Step(deadline)) {
    }
  }

  Result<protocol::ClusterView> Next(TimePoint deadline) override {
    while (!over_) {
      if (arrived_) return Decode(*std::exchange(arrived_, std::nullopt));
      if (!Step(deadline))
        return Status(Code::kTimedOut, StrCat("no answer from the controller at ", address_,
                                              " in time; check that it runs and the address"));
    }
    return FromGrpc(outcome_, address_);
  }

 private:
  [[nodiscard]] Result<protocol::ClusterView> Decode(const std::string& view) const {
    if (!view.empty()) return protocol::DecodeClusterView(view);
    // Before protocol version 3 views were no envelopes.
    return Status(Code::kProtocol,
                  StrCat("the controller at ", address_, " speaks an older protocol version than ",
                         protocol::kProtocolVersion, "; use the same weightcast on all hosts"));
  }

  /// One event of the stream; false at the deadline or after the end.
  bool Step(TimePoint until) {
    const Duration left = std::max(Duration::zero(), until - Clock::now());
    const gpr_timespec deadline =
        gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_nanos(left.count(), GPR_TIMESPAN));
    void* tag = nullptr;
    bool ok = false;
    if (queue_.AsyncNext(&tag, &ok, deadline) != grpc::CompletionQueue::GOT_EVENT) return false;
    if (tag == ToTag(kFinish)) {
      over_ = true;
    } else if (!ok) {
      reader_->Finish(&outcome_, ToTag(kFinish));
    } else {
      if (tag == ToTag(kRead)) arrived_ = std::move(*in_.mutable_body());
      reader_->Read(&in_, ToTag(kRead));
    }
    return true;
  }

  const std::string address_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<pb::Control::Stub> stub_;
  grpc::CompletionQueue queue_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientAsyncReader<pb::Envelope>> reader_;
  pb::Envelope in_;
  std::optional<std::string> arrived_;
  grpc::Status outcome_;
  bool over_ = false;
};

}  // namespace

Result<std::unique_ptr<ViewStream>> ViewStream::Open(const Settings& settings) {
  WC_ASSIGN_OR_RETURN(const Token token, LoadToken(settings));
  return std::unique_ptr<ViewStream>(std::make_unique<GrpcViewStream>(settings, token));
}

}  // namespace weightcast::control
