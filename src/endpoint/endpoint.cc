#include "weightcast/endpoint.h"

#include "base/log.h"
#include "base/strings.h"
#include "endpoint/core.h"
#include "endpoint/create.h"
#include "endpoint/transfers/slices.h"

namespace weightcast {

using endpoint::Core;

Status OutsideSlice(uint64_t offset, uint64_t length, uint64_t size) {
  return Error(Code::kOutOfBounds, length, " bytes at ", offset, " are not inside a slice of ", size,
               " bytes; give a part inside it");
}

// --- Region ------------------------------------------------------------------------------------

class Region::State {
 public:
  State(std::shared_ptr<Core> core, endpoint::Registrations::Handle handle, std::span<std::byte> bytes)
      : core_(std::move(core)),
        registration_(handle->data),
        offset_(handle->OffsetOf(bytes.data())),
        length_(bytes.size()),
        handle_(std::move(handle)) {}
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {
    if (core_->forked()) {
      new endpoint::Registrations::Handle(std::move(handle_));  // The parent's; here it is only forgotten.
      return;
    }
    if (Status status = Close(In(core_->settings().lease)); !status.ok()) {
      WC_LOG(kError, "a region was dropped while ", status.message());
    }
  }

  [[nodiscard]] const endpoint::RegisteredMemory& registration() const { return *registration_; }
  [[nodiscard]] uint64_t offset() const { return offset_; }
  [[nodiscard]] uint64_t length() const { return length_; }

  Status Close(TimePoint deadline) {
    if (core_->forked()) return core_->Usable();
    {
      endpoint::Registrations::Handle dropped;  // Let go without the lock: it calls the endpoint.
      const std::lock_guard lock(mutex_);
      dropped = std::move(handle_);
    }
    if (!registration_->closing.load()) return Status::Ok();  // Others still hold regions in it.
    if (core_->progress().WaitFor(registration_->closed, 1, deadline)) {
      core_->regions().FreeBuffer(*registration_);
      return Status::Ok();
    }
    const auto writers = std::make_shared<std::pair<endpoint::Flag, std::string>>();
    endpoint::SubmitNow(core_->progress(), [core = core_, writers] {
      writers->second = core->links().Writers();
      writers->first.Set(1);
    });
    // Bounded: a region may be let go of by who holds progress.
    const bool known = core_->progress().WaitFor(writers->first, 1, In(std::chrono::seconds(1)));
    return Error(Code::kTimedOut, known ? writers->second : "a peer", " may still write to a region of ",
                 HumanBytes(static_cast<double>(length_)),
                 "; keep the memory until that process has ended or continues (kill -CONT)");
  }

 private:
  const std::shared_ptr<Core> core_;
  const std::shared_ptr<endpoint::RegisteredMemory> registration_;
  const uint64_t offset_;
  const uint64_t length_;
  std::mutex mutex_;  ///< Guards handle_.
  endpoint::Registrations::Handle handle_;
};

uint64_t Region::length() const { return state_->length(); }
LocalSlice Region::Whole() const {
  const endpoint::RegisteredMemory& registration = state_->registration();
  return SliceAccess::Make<SliceSide::kLocal>(registration.serial, registration.name.id, state_->offset(),
                                              state_->length());
}
Status Region::Close(TimePoint deadline) { return state_->Close(deadline); }

std::string Region::Descriptor() const {
  const endpoint::RegisteredMemory& registration = state_->registration();
  return endpoint::EncodeDescriptor({.name = registration.name,
                                     .access = registration.access,
                                     .kind = registration.memory.kind,
                                     .device = registration.memory.device,
                                     .registered = registration.memory.length,
                                     .offset = state_->offset(),
                                     .length = state_->length(),
                                     .keys = registration.keys});
}

// --- Transfer ----------------------------------------------------------------------------------

namespace {

Status WaitPhase(Transfer::State& transfer, uint32_t phase, TimePoint deadline) {
  if (transfer.phase.value() < phase) {
    Core& core = Core::Of(transfer);
    if (core.forked()) return core.Usable();
    if (!core.progress().WaitFor(transfer.phase, phase, deadline)) {
      return Error(Code::kTimedOut, "the transfer of ", transfer.bytes,
                   " bytes has not ended within the timeout of this call and continues; "
                   "wait again, or cancel it");
    }
  }
  return transfer.outcome;
}

}  // namespace

Transfer::Transfer(const Transfer& other) : state_(other.state_) {
  if (state_ != nullptr) state_->AddReference();
}
Transfer::~Transfer() {
  if (state_ != nullptr) state_->DropReference();
}

bool Transfer::ended() const { return state_->phase.value() >= State::kEnded; }
bool Transfer::fenced() const { return state_->phase.value() >= State::kFenced; }
uint64_t Transfer::bytes() const { return state_->bytes; }
Status Transfer::Wait(TimePoint deadline) { return WaitPhase(*state_, State::kEnded, deadline); }
Status Transfer::WaitFenced(TimePoint deadline) { return WaitPhase(*state_, State::kFenced, deadline); }

void Transfer::OnEnd(std::function<void(const Status&)> then) {
  if (Core::Of(*state_).forked()) return;
  endpoint::SubmitNow(
      Core::Of(*state_).progress(), [state = endpoint::Share(*state_), then = std::move(then)]() mutable {
        if (state->phase.value() >= State::kEnded) {
          Core::Of(*state).callbacks().Later([state, then = std::move(then)] { then(state->outcome); });
          return;
        }
        auto& on_end = state->options.on_end;
        if (on_end == nullptr) {
          on_end = std::move(then);
          return;
        }
        on_end = [first = std::move(on_end), then = std::move(then)](const Status& status) {
          first(status);
          then(status);
        };
      });
  Core::Of(*state_).progress().WatchAgain();  // Nobody waits for it.
}

void Transfer::Cancel() {
  if (ended() || Core::Of(*state_).forked()) return;
  endpoint::SubmitNow(Core::Of(*state_).progress(), [state = endpoint::Share(*state_)] {
    if (state->phase.value() >= State::kEnded) return;
    static_cast<Connection::State*>(state->connection.get())
        ->sender()
        .End(*state, {Code::kCancelled, "this process cancelled the transfer; begin it again to go on"});
  });
}

// --- Endpoint ----------------------------------------------------------------------------------

namespace {

class EndpointImpl final : public Endpoint {
 public:
  explicit EndpointImpl(std::shared_ptr<Core> core) : core_(std::move(core)) {}
  EndpointImpl(const EndpointImpl&) = delete;
  EndpointImpl& operator=(const EndpointImpl&) = delete;
  ~EndpointImpl() override {
    if (core_->forked()) {
      new std::shared_ptr<Core>(core_);  // Its thread does not exist here: never destroyed.
      return;
    }
    core_->Shutdown();
  }

  [[nodiscard]] const Identity& self() const override { return core_->self(); }
  [[nodiscard]] int descriptor() const override { return core_->callbacks().descriptor(); }
  size_t Progress() override {
    if (core_->forked()) return 0;
    core_->progress().Step();
    return core_->callbacks().Run();
  }
  [[nodiscard]] std::vector<std::string> Addresses() const override { return core_->listener().addresses(); }

  using Endpoint::Register;
  Result<Region> Register(const Memory& memory, Access access) override {
    WC_RETURN_IF_ERROR(core_->Usable());
    WC_RETURN_IF_ERROR(CheckMemory(memory));
    WC_ASSIGN_OR_RETURN(auto handle, core_->regions().Acquire(memory, access));
    const std::span bytes(memory.address, memory.length);
    return Region(std::make_shared<Region::State>(core_, std::move(handle), bytes));
  }

  Result<std::shared_ptr<const DeviceEvent>> Record(const StreamRef& stream) override {
    WC_RETURN_IF_ERROR(core_->Usable());
    return core_->device_memory().Record(stream);
  }

  Result<Connection> Connect(const std::vector<std::string>& addresses, const Identity& expected,
                             TimePoint deadline, std::string key) override {
    WC_RETURN_IF_ERROR(core_->Usable());
    WC_ASSIGN_OR_RETURN(auto connection,
                        core_->connector().Connect(addresses, expected, deadline, std::move(key)));
    return Connection(std::move(connection));
  }

  [[nodiscard]] std::optional<Connection> Find(Incarnation peer) const override {
    auto connection = core_->connections().Find(peer);
    if (connection == nullptr || !connection->view().usable()) return std::nullopt;
    return Connection(std::move(connection));
  }

  [[nodiscard]] std::vector<PeerInfo> Peers() const override {
    std::vector<PeerInfo> peers;
    for (const auto& connection : core_->connections().All()) {
      const endpoint::ConnectionView& view = connection->view();
      if (view.usable()) peers.push_back({view.peer().identity, view.transport_name(), view.Describe()});
    }
    return peers;
  }

 private:
  const std::shared_ptr<Core> core_;
};

}  // namespace

namespace endpoint {

Result<std::unique_ptr<Endpoint>> CreateWith(EndpointOptions options,
                                             std::span<const transport::TransportFactory> factories) {
  WC_ASSIGN_OR_RETURN(auto core, Core::Create(std::move(options), factories));
  return std::unique_ptr<Endpoint>(std::make_unique<EndpointImpl>(std::move(core)));
}

}  // namespace endpoint
}  // namespace weightcast
