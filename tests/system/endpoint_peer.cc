#include "system/endpoint_peer.h"

namespace weightcast::system_test {
namespace {

/// What the forked process does: one command a line, one answer each.
class PeerProcess {
 public:
  PeerProcess(const PeerSetup& setup, size_t memory, const test::Channel& channel)
      : setup_(setup), channel_(channel) {
    if (memory > 0) area_.emplace(memory, setup.shared);
  }

  void Run() {
    while (auto command = channel_.TryReceive()) {
      std::istringstream words(*command);
      std::string verb;
      words >> verb;
      if (verb == "exit") break;
      (void)channel_.TrySend(Obey(verb, words));
    }
    connection_.reset();
    region_.reset();
    endpoint_.reset();
  }

 private:
  template <typename T>
  static std::string Said(const Result<T>& result) {
    return result.ok() ? "ok" : Said(result.status());
  }
  static std::string Said(const Status& status) {
    return status.ok() ? "ok" : StrCat("error ", CodeName(status.code()), ": ", status.message());
  }

  std::string Obey(const std::string& verb, std::istringstream& words) {
    if (verb == "open") return Open();
    if (verb == "region") return Register(words);
    if (verb == "hash") return StrCat("ok ", Hash64(area_->bytes));
    if (verb == "connect") return Connect(words);
    if (verb == "accepted") return Accepted();
    if (verb == "grant") return Grant(words);
    if (verb == "arrived") return Arrived();
    if (verb == "revoke") return Revoke();
    if (verb == "write") return Write(words);
    if (verb == "flood") return Flood(words);
    if (verb == "echo") return Echo();
    if (verb == "take") return Take(words);
    if (verb == "status") return Said(connection_->status());
    if (verb == "disconnected") return Eventually([&] { return ended_.load(); }) ? "ok" : "error still there";
    if (verb == "filled") {
      uint64_t seed = 0;
      words >> seed;
      return IsFilled(area_->bytes, seed) ? "ok" : "error other bytes";
    }
    if (verb == "fill") {
      uint64_t seed = 0;
      words >> seed;
      Fill(area_->bytes, seed);
      return "ok";
    }
    return "error unknown command";
  }

  std::string Open() {
    EndpointOptions options = OptionsOf(setup_, "peer");
    options.on_connection = [this](Connection connection) {
      const std::lock_guard lock(mutex_);
      accepted_.emplace(std::move(connection));
    };
    options.on_disconnect = [this](const Identity&, const Status&) { ended_ = true; };
    auto created = Endpoint::Create(std::move(options));
    if (!created.ok()) return Said(created);
    endpoint_ = std::move(created).value();
    std::string answer = StrCat("ok ", endpoint_->self().incarnation);
    for (const std::string& address : endpoint_->Addresses()) answer += " " + address;
    return answer;
  }

  std::string Register(std::istringstream& words) {
    std::string access;
    words >> access;
    const std::map<std::string, Access> kinds = {
        {"granted", Access::kGranted}, {"readwrite", Access::kReadWrite}, {"local", Access::kLocal}};
    auto region = endpoint_->Register(area_->bytes, kinds.at(access));
    if (!region.ok()) return Said(region);
    region_.emplace(std::move(region).value());
    return "ok " + Hex(region_->Descriptor());
  }

  std::string Connect(std::istringstream& words) {
    Identity expected;
    std::string address;
    words >> address >> expected.role >> expected.rank >> expected.incarnation;
    auto connection = endpoint_->Connect({address}, expected, Soon());
    if (!connection.ok()) return Said(connection);
    connection_.emplace(std::move(connection).value());
    return "ok " + connection_->transport_name();
  }

  std::string Accepted() {
    const bool came = Eventually([&] {
      const std::lock_guard lock(mutex_);
      return accepted_.has_value();
    });
    if (!came) return "error nobody came";
    const std::lock_guard lock(mutex_);
    connection_ = std::exchange(accepted_, std::nullopt);
    ended_ = false;
    return StrCat("ok ", connection_->peer().role, " ", connection_->peer().rank, " ",
                  connection_->transport_name());
  }

  std::string Grant(std::istringstream& words) {
    GrantOptions options;
    words >> options.transfers;
    auto grant = connection_->OpenGrant(std::move(options));
    if (!grant.ok()) return Said(grant);
    grant_ = *grant;
    return StrCat("ok ", grant_.slot, " ", grant_.id);
  }
  std::string Arrived() {
    return Eventually([&] { return connection_->ProgressOf(grant_).complete(); }) ? "ok" : "error incomplete";
  }
  std::string Revoke() {
    auto fenced = std::make_shared<std::atomic<bool>>(false);
    connection_->RevokeGrant(grant_, [fenced] { *fenced = true; });
    return Eventually([&] { return fenced->load(); }) ? "ok" : "error not fenced";
  }

  /// write SLOT ID DESCRIPTOR: all of our memory, once.
  std::string Write(std::istringstream& words) {
    Piece piece{.local = region_->Whole(), .remote = {}};
    TransferOptions options;
    const Status ready = Prepare(words, piece, options);
    if (!ready.ok()) return Said(ready);
    auto write = connection_->Write({&piece, 1}, options);
    return write.ok() ? Said(write->Wait()) : Said(write);
  }
  /// The same without end: the answer is the reason why it stopped.
  std::string Flood(std::istringstream& words) {
    Piece piece{.local = region_->Whole(), .remote = {}};
    TransferOptions options;
    Status status = Prepare(words, piece, options);
    for (uint64_t seed = 1; status.ok(); ++seed) {
      Fill(area_->bytes.subspan(0, 4096), seed);
      auto write = connection_->Write({&piece, 1}, options);
      status = write.ok() ? write->Wait() : write.status();
    }
    return Said(status);
  }
  /// Takes notices, each the seed of what was written to our memory before it, and sends them back; until an
  /// empty one.
  std::string Echo() {
    while (true) {
      auto notice = connection_->TakeNotice(Soon());
      if (!notice.ok()) return Said(notice);
      if (notice->empty()) return "ok";
      if (!IsFilled(area_->bytes, std::stoull(*notice)))
        return "error notice " + *notice + " before its bytes";
      if (Status sent = connection_->Notify(*notice); !sent.ok()) return Said(sent);
    }
  }
  /// take COUNT: as many notices, numbered from 1.
  std::string Take(std::istringstream& words) {
    uint64_t count = 0;
    words >> count;
    for (uint64_t i = 1; i <= count; ++i) {
      auto notice = connection_->TakeNotice(Soon());
      if (!notice.ok()) return Said(notice);
      if (std::stoull(*notice) != i) return "error out of order";
    }
    return "ok";
  }
  Status Prepare(std::istringstream& words, Piece& piece, TransferOptions& options) {
    std::string descriptor;
    words >> options.grant.slot >> options.grant.id >> descriptor;
    if (options.grant.id != 0) options.signal = 0;
    auto region = connection_->Import(Unhex(descriptor));
    if (region.ok()) {
      WC_ASSIGN_OR_RETURN(piece.remote, region->Slice(0, piece.local.length()));
    }
    return region.status();
  }

  const PeerSetup setup_;
  const test::Channel& channel_;
  std::optional<Area> area_;
  std::mutex mutex_;
  std::optional<Connection> accepted_;
  std::atomic<bool> ended_{false};
  std::unique_ptr<Endpoint> endpoint_;
  std::optional<weightcast::Region> region_;
  std::optional<Connection> connection_;
  GrantName grant_;
};

}  // namespace

std::string Hex(const std::string& bytes) { return ToHex(bytes); }

std::string Unhex(const std::string& text) {
  std::string bytes;
  for (size_t i = 0; i + 1 < text.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(text.substr(i, 2), nullptr, 16));
  }
  return bytes;
}

Peer::Peer(const PeerSetup& setup, size_t memory)
    : log_(memfd_create("peer log", MFD_CLOEXEC)),
      identity_{"job", "peer", "", setup.rank, setup.incarnation} {
  child_.emplace([&](const test::Channel& channel) {
    dup2(log_.get(), STDERR_FILENO);
    PeerProcess(setup, memory, channel).Run();
  });
}

Peer::~Peer() {
  if (!child_->alive()) return;
  Tell("exit");
  const auto code = child_->Wait();
  if (!code)
    ADD_FAILURE() << "the peer hangs";
  else
    EXPECT_EQ(*code, 0) << "the peer ended badly:\n" << Log();
}

std::string Peer::Answer() { return child_->channel().TryReceive().value_or("gone"); }

std::string Peer::Ask(const std::string& command) {
  Tell(command);
  return Answer();
}

std::string Peer::Do(const std::string& command) {
  const std::string answer = Ask(command);
  if (answer == "ok") return {};
  EXPECT_TRUE(answer.starts_with("ok ")) << command << " → " << answer << "\n" << Log();
  return answer.starts_with("ok ") ? answer.substr(3) : answer;
}

void Peer::Open() {
  std::istringstream words(Do("open"));
  words >> identity_.incarnation;
  std::string address;
  while (words >> address) addresses_.push_back(address);
}

std::string Peer::Log() const {
  std::string text(1 << 16, '\0');
  const ssize_t size = pread(log_.get(), text.data(), text.size(), 0);
  text.resize(static_cast<size_t>(std::max<ssize_t>(size, 0)));
  return text;
}

}  // namespace weightcast::system_test
