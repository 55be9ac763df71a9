// The half of a pair that writes and reads. It cancels some of its transfers and gives others too little
// time.
#include <cstdio>
#include <fstream>

#include "base/strings.h"
#include "soak/data_role.h"

namespace weightcast::soak {
namespace {

constexpr Duration kLong = std::chrono::seconds(10);

class Source {
 public:
  Source(DataBoard& board, const DataSetup& setup)
      : board_(board), mine_(board.role[kSource]), setup_(setup), random_(std::random_device{}()) {
    mine_.life_rounds = 0;
  }

  int Run() {
    auto created = MakeEndpoint(setup_, "source", {});
    if (!created.ok()) {
      std::fprintf(stderr, "%s\n", created.status().ToString().c_str());
      return 1;
    }
    endpoint_ = std::move(created).value();
    auto from = endpoint_->Register(from_.bytes(), Access::kLocal);
    auto into = endpoint_->Register(into_.bytes(), Access::kLocal);
    if (!from.ok() || !into.ok()) return 1;
    from_region_ = &*from;
    into_region_ = &*into;
    into_.Fill(into_seed_);
    while (!board_.stop) {
      auto connection = Connect();
      if (connection.ok()) {
        Talk(*connection);
      } else {
        Rest(std::chrono::milliseconds(5));
      }
    }
    for (Region* region : {&*from, &*into}) {
      const Status closed = region->Close(Clock::now() + kFencePatience);
      if (!closed.ok()) board_.Violated("source: a region cannot be closed: " + closed.ToString());
    }
    endpoint_.reset();
    return 0;
  }

 private:
  Result<Connection> Connect() {
    std::ifstream in(setup_.folder + "/address");
    Identity target{"soak", "target", "", setup_.pair, 0};
    in >> target.incarnation;
    std::vector<std::string> addresses;
    for (std::string address; in >> address;) addresses.push_back(address);
    if (addresses.empty()) return Status(Code::kUnavailable, "the target has not said where it is");
    return endpoint_->Connect(addresses, target, Clock::now() + std::chrono::seconds(1));
  }

  void Talk(Connection& connection) {
    const auto hello = Hear(board_, connection);
    if (!hello || hello->size() != 4) return connection.Close();
    ++mine_.connections;
    std::array<RemoteRegion, 3> remote;  // Landing, open, book.
    for (size_t i = 0; i < remote.size(); ++i) {
      const auto region = connection.Import(Unhex((*hello)[i + 1]));
      if (!region.ok() || region->length() != kAreaSize) return connection.Close();
      remote[i] = *region;
    }
    while (auto words = Hear(board_, connection)) {
      if (words->size() < 2) return connection.Close();
      const bool granted = words->front() == "grant";
      const uint64_t seed = std::stoull((*words)[1]);
      TransferOptions options;
      if (granted) {
        options.grant = {static_cast<uint32_t>(std::stoul((*words)[2])), std::stoull((*words)[3])};
        options.signal = 0;
      }
      from_.Fill(seed);
      const bool ok = Carry(connection, *from_region_, remote[granted ? 0 : 1], false, options);
      if (!Say(connection, StrCat(words->front(), " ", seed, ok ? " ok" : " failed")))
        return connection.Close();
      if (granted) Read(connection, remote[2]);
      EndRound(mine_);
    }
    connection.Close();
  }

  void Read(Connection& connection, const RemoteRegion& book) {
    if (!into_.Is(into_seed_)) board_.Violated("source: bytes in our memory after the fence of a read");
    if (Carry(connection, *into_region_, book, true, {}) && !into_.Is(kBookSeed)) {
      board_.Violated("source: other bytes than there are to read");
    }
    into_.Fill(++into_seed_);
  }

  /// One transfer of the whole area, now and then cancelled or given too little time. Returns when it is
  /// fenced; whether it ended well.
  bool Carry(Connection& connection, const Region& region, const RemoteRegion& remote, bool read,
             TransferOptions options) {
    const auto fate = random_() % 5;
    options.deadline = In(fate == 0 ? Duration(std::chrono::microseconds(random_() % 10'000)) : kLong);
    const Piece piece{region.Whole(), remote.Whole()};
    auto begun = read ? connection.Read({&piece, 1}, options) : connection.Write({&piece, 1}, options);
    if (!begun.ok()) return Count(begun.status(), read);
    if (fate == 1) {
      Rest(std::chrono::microseconds(random_() % 2000));
      begun->Cancel();
    }
    const Status status = begun->WaitFenced(Clock::now() + kFencePatience);
    if (!begun->fenced()) board_.Violated("source: a transfer is not fenced: " + status.ToString());
    return Count(status, read);
  }

  bool Count(const Status& status, bool read) {
    if (status.ok()) {
      ++(read ? board_.reads : board_.writes);
    } else if (status.code() == Code::kCancelled) {
      ++board_.cancelled;
    } else {
      ++(status.code() == Code::kTimedOut ? board_.timed_out : board_.failed);
    }
    return status.ok();
  }

  DataBoard& board_;
  DataBoard::Role& mine_;
  const DataSetup setup_;
  std::mt19937 random_;
  Area from_{setup_.shared};
  Area into_{setup_.shared};
  uint64_t into_seed_ = 1'000'000;
  std::unique_ptr<Endpoint> endpoint_;
  Region* from_region_ = nullptr;
  Region* into_region_ = nullptr;
};

}  // namespace

int RunSource(DataBoard& board, const DataSetup& setup) { return Source(board, setup).Run(); }

}  // namespace weightcast::soak
