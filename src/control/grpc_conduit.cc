#include <grpcpp/alarm.h>
#include <grpcpp/grpcpp.h>

#include <mutex>
#include <utility>

#include "base/log.h"
#include "base/strings.h"
#include "control/conduit.h"
#include "control/grpc_channel.h"
#include "wire/control.grpc.pb.h"

namespace weightcast::control {
namespace {

namespace pb = wire::pb;

constexpr auto kGoodbye = std::chrono::seconds(2);

enum Tag : intptr_t { kStart = 1, kRead, kWrite, kFinish, kAlarm };
void* ToTag(Tag tag) { return reinterpret_cast<void*>(tag); }

gpr_timespec ToGrpc(TimePoint until) {
  const Duration left = std::max(Duration::zero(), until - Clock::now());
  return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_nanos(left.count(), GPR_TIMESPAN));
}

/// One stream, with everything that gRPC wants kept until it is over.
struct Call {
  std::string address;
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<pb::Control::Stub> stub;
  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientAsyncReaderWriter<pb::Envelope, pb::Envelope>> stream;
  std::shared_ptr<SessionLink> link;
  Assembler assembler;
  pb::Envelope in;
  pb::Envelope out;
  grpc::Status outcome;
  Status offence;  ///< Why this side ended it.
  bool started = false;
  bool starting = true;
  bool reading = false;
  bool writing = false;
  bool finishing = false;
  bool finished = false;
  [[nodiscard]] bool over() const { return finished && !starting && !reading && !writing; }
};

class GrpcConduit final : public Conduit {
 public:
  ~GrpcConduit() override {
    {
      const std::lock_guard lock(wake_mutex_);
      closed_ = true;
      if (alarm_set_) alarm_.Cancel();
    }
    const TimePoint deadline = Clock::now() + kGoodbye;
    if (call_ != nullptr) Abort();
    while (call_ != nullptr && Clock::now() < deadline) {
      void* tag = nullptr;
      bool ok = false;
      if (queue_.AsyncNext(&tag, &ok, ToGrpc(deadline)) != grpc::CompletionQueue::GOT_EVENT) break;
      (void)Handle(tag, ok);
    }
    if (call_ != nullptr) {
      WC_LOG(kError, "gRPC does not let go of a cancelled stream");
      (void)call_.release();  // It may still be written to.
    }
    queue_.Shutdown();
    void* tag = nullptr;
    bool ok = false;
    while (queue_.AsyncNext(&tag, &ok, ToGrpc(deadline)) == grpc::CompletionQueue::GOT_EVENT) {
    }
  }

  void Dial(const Target& target, std::shared_ptr<SessionLink> link) override {
    call_ = std::make_unique<Call>();
    call_->address = target.address;
    call_->link = std::move(link);
    call_->channel = OpenChannel(target.address, target.lease);
    call_->stub = pb::Control::NewStub(call_->channel);
    call_->context.AddMetadata("authorization", StrCat("Bearer ", target.token));
    call_->stream = call_->stub->PrepareAsyncAttach(&call_->context, &queue_);
    call_->stream->StartCall(ToTag(kStart));
  }
  void Kick() override {
    if (call_ != nullptr) Write();
  }
  void Abort() override {
    if (call_ != nullptr) call_->context.TryCancel();
  }
  [[nodiscard]] bool open() const override { return call_ != nullptr; }

  Event Next(TimePoint until) override {
    void* tag = nullptr;
    bool ok = false;
    if (queue_.AsyncNext(&tag, &ok, ToGrpc(until)) != grpc::CompletionQueue::GOT_EVENT) return {};
    return Handle(tag, ok);
  }

  void Wake() override {
    const std::lock_guard lock(wake_mutex_);
    if (alarm_set_ || closed_) return;
    alarm_set_ = true;
    alarm_.Set(&queue_, gpr_now(GPR_CLOCK_MONOTONIC), ToTag(kAlarm));
  }

 private:
  static Event Woken() {
    Event event;
    event.kind = Event::Kind::kWoken;
    return event;
  }

  Event Handle(void* tag, bool ok) {
    switch (static_cast<Tag>(reinterpret_cast<intptr_t>(tag))) {
      case kAlarm: {
        const std::lock_guard lock(wake_mutex_);
        alarm_set_ = false;
        return Woken();
      }
      case kStart:
        call_->starting = false;
        call_->started = ok;
        ok ? Read() : Finish();
        Write();
        break;
      case kRead:
        call_->reading = false;
        if (ok) return Take();
        Finish();
        break;
      case kWrite:
        call_->writing = false;
        ok ? Write() : Finish();
        break;
      case kFinish:
        call_->finished = true;
        break;
    }
    return Closed();
  }

  /// kClosed if the stream is over, otherwise nothing to tell.
  Event Closed() {
    Event event = Woken();
    if (!call_->over()) return event;
    event.kind = Event::Kind::kClosed;
    event.reason = call_->offence.ok() ? FromGrpc(call_->outcome, call_->address) : call_->offence;
    call_.reset();
    return event;
  }

  void Read() {
    call_->reading = true;
    call_->stream->Read(&call_->in, ToTag(kRead));
  }

  Event Take() {
    Event event = Woken();
    auto parcel =
        call_->assembler.Add(static_cast<uint32_t>(call_->in.kind()), std::move(*call_->in.mutable_body()));
    if (!parcel.ok()) {
      call_->offence = parcel.status();
      call_->context.TryCancel();
    } else if (*parcel) {
      event.kind = Event::Kind::kMessage;
      event.number = call_->in.number();
      event.acknowledged = call_->in.acknowledged();
      event.session = call_->in.session();
      event.parcel = std::move(**parcel);
    } else {
      event.kind = Event::Kind::kPiece;
    }
    Read();
    return event;
  }

  void Write() {
    if (!call_->started || call_->writing || call_->finishing) return;
    const auto next = call_->link->Next();
    if (!next) return;
    call_->out.set_number(next->number);
    call_->out.set_acknowledged(next->acknowledged);
    call_->out.set_session(next->session);
    call_->out.set_kind(static_cast<pb::Envelope::Kind>(next->kind));
    call_->out.set_body(next->packet->parts[next->part]);
    call_->writing = true;
    call_->stream->Write(call_->out, ToTag(kWrite));
  }

  void Finish() {
    if (std::exchange(call_->finishing, true)) return;
    call_->stream->Finish(&call_->outcome, ToTag(kFinish));
  }

  grpc::CompletionQueue queue_;
  std::unique_ptr<Call> call_;
  std::mutex wake_mutex_;
  grpc::Alarm alarm_;
  bool alarm_set_ = false;
  bool closed_ = false;
};

}  // namespace

std::unique_ptr<Conduit> Conduit::Create() { return std::make_unique<GrpcConduit>(); }

}  // namespace weightcast::control
