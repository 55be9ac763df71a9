// The half of a pair that is written to and read from. It owns the memory, so it says what may not happen.
#include <cstdio>
#include <fstream>
#include <mutex>

#include "base/strings.h"
#include "soak/data_role.h"

namespace weightcast::soak {
namespace {

/// For bytes that must not come: the memory is looked at again after this.
constexpr Duration kWatch = std::chrono::milliseconds(20);

class Target {
 public:
  Target(DataBoard& board, const DataSetup& setup)
      : board_(board),
        mine_(board.role[kTarget]),
        setup_(setup),
        seed_(uint64_t{std::random_device{}()} << 20) {
    mine_.life_rounds = 0;
  }

  int Run() {
    auto created = MakeEndpoint(setup_, "target", [this](Connection connection) {
      const std::lock_guard lock(mutex_);
      accepted_.emplace(std::move(connection));
    });
    if (!created.ok()) return Fail(created.status());
    endpoint_ = std::move(created).value();
    book_.Fill(kBookSeed);
    if (!Register(landing_, Access::kGranted, landing_region_) ||
        !Register(book_, Access::kRead, book_region_))
      return 1;
    if (!Register(open_, Access::kReadWrite, open_region_)) return 1;
    Advertise();
    while (!board_.stop) {
      if (auto connection = Accepted()) {
        Serve(*connection);
      } else {
        Rest(std::chrono::milliseconds(1));
      }
    }
    for (auto* region : {&landing_region_, &open_region_, &book_region_}) Close(*region);
    endpoint_.reset();
    return 0;
  }

 private:
  static int Fail(const Status& status) {
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
    return 1;
  }
  bool Register(const Area& area, Access access, std::optional<Region>& region) {
    auto registered = endpoint_->Register(area.bytes(), access);
    if (!registered.ok()) return Fail(registered.status()) == 0;
    region.emplace(std::move(registered).value());
    return true;
  }
  void Close(std::optional<Region>& region) {
    const Status closed = region->Close(Clock::now() + kFencePatience);
    if (!closed.ok()) board_.Violated("a region cannot be closed: " + closed.ToString());
    region.reset();
  }
  /// Where the source looks: the file is there whole or not at all.
  void Advertise() {
    const std::string name = setup_.folder + "/address";
    std::ofstream out(name + ".new");
    out << endpoint_->self().incarnation;
    for (const std::string& address : endpoint_->Addresses()) out << " " << address;
    out.close();
    std::rename((name + ".new").c_str(), name.c_str());
  }
  std::optional<Connection> Accepted() {
    const std::lock_guard lock(mutex_);
    return std::exchange(accepted_, std::nullopt);
  }

  void Serve(Connection& connection) {
    ++mine_.connections;
    const auto hex = [](const std::optional<Region>& region) { return ToHex(region->Descriptor()); };
    if (Say(connection,
            StrCat("hello ", hex(landing_region_), " ", hex(open_region_), " ", hex(book_region_)))) {
      while (!board_.stop && Landing(connection) && Open(connection)) EndRound(mine_);
    }
    End(connection);
  }

  /// Written under a grant: whole when it is said to be, and ours again once it is fenced.
  bool Landing(Connection& connection) {
    ++seed_;
    auto grant = connection.OpenGrant({.transfers = 1});
    if (!grant.ok()) return false;
    grant_ = *grant;
    if (!Say(connection, StrCat("grant ", seed_, " ", grant->slot, " ", grant->id))) return false;
    const auto outcome = Outcome(connection, "grant");
    if (!outcome) return false;
    if (*outcome == "ok") {
      const TimePoint limit = Clock::now() + kFencePatience;
      while (!connection.ProgressOf(*grant).complete()) {
        if (!connection.status().ok()) return false;
        if (Clock::now() > limit) return Violated("signals are missing of a write that ended well");
        Rest(std::chrono::microseconds(100));
      }
      if (!landing_.Is(seed_)) return Violated("other bytes than a write that ended well has written");
    }
    if (!Fence(connection)) return false;
    landing_.Fill(~seed_);
    return true;
  }

  /// Written without: ours again once the source says that its write is fenced.
  bool Open(Connection& connection) {
    if (open_seed_ && !open_.Is(*open_seed_))
      return Violated("bytes in the open area after the writer's fence");
    open_seed_.reset();
    if (!Say(connection, StrCat("open ", seed_))) return false;
    const auto outcome = Outcome(connection, "open");
    if (!outcome) return false;
    if (*outcome == "ok" && !open_.Is(seed_)) return Violated("other bytes than an open write has written");
    open_.Fill(~seed_);
    open_seed_ = ~seed_;
    return landing_.Is(~seed_) || Violated("bytes under a grant after its fence");
  }

  /// What the source says of the transfer that it was told to make.
  std::optional<std::string> Outcome(Connection& connection, std::string_view what) {
    const auto words = Hear(board_, connection);
    if (!words) return std::nullopt;
    if (words->size() == 3 && (*words)[0] == what && (*words)[1] == std::to_string(seed_)) return (*words)[2];
    Violated("a notice out of order");
    return std::nullopt;
  }

  bool Fence(Connection& connection) {
    const auto fenced = std::make_shared<std::atomic<bool>>(false);
    connection.RevokeGrant(*std::exchange(grant_, std::nullopt), [fenced] { *fenced = true; });
    const TimePoint limit = Clock::now() + kFencePatience;
    while (!*fenced) {
      if (Clock::now() > limit) return Violated("a grant is not fenced");
      Rest(std::chrono::microseconds(50));
    }
    return true;
  }

  /// The connection is over: all memory is ours again, however it ended.
  void End(Connection& connection) {
    connection.Close();
    if (grant_) Fence(connection);
    Close(open_region_);
    landing_.Fill(~seed_);
    open_.Fill(~seed_);
    Rest(kWatch);
    if (!landing_.Is(~seed_)) Violated("bytes under a grant after its connection's end and its fence");
    if (!open_.Is(~seed_)) Violated("bytes in a region that was closed");
    open_seed_.reset();
    Register(open_, Access::kReadWrite, open_region_);
  }

  bool Violated(const std::string& what) {
    board_.Violated("target: " + what);
    return false;
  }

  DataBoard& board_;
  DataBoard::Role& mine_;
  const DataSetup setup_;
  uint64_t seed_;
  Area landing_{setup_.shared};
  Area open_{setup_.shared};
  Area book_{setup_.shared};
  std::mutex mutex_;
  std::optional<Connection> accepted_;
  std::unique_ptr<Endpoint> endpoint_;
  std::optional<Region> landing_region_;
  std::optional<Region> open_region_;
  std::optional<Region> book_region_;
  std::optional<GrantName> grant_;
  std::optional<uint64_t> open_seed_;  ///< What the open area holds while nobody writes.
};

}  // namespace

int RunTarget(DataBoard& board, const DataSetup& setup) { return Target(board, setup).Run(); }

}  // namespace weightcast::soak
