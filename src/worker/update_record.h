#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "protocol/messages.h"
#include "weightcast/status.h"
#include "weightcast/worker.h"
#include "worker/stream_gate.h"
#include "worker/waiting.h"

namespace weightcast::worker {

/// What Publish returns: what is known of one version, written by the worker's loop, waited for by the user.
/// Thread safe.
class UpdateRecord final : public Update {
 public:
  /// They may outlive the worker.
  struct Calls {
    std::function<void()> cancel;
    std::function<void(const Status&)> give_up;  ///< There is no controller; SetFree and SetDone follow.
    std::function<Result<std::string>(TimePoint)> explain;
  };
  UpdateRecord(Version version, Interrupted interrupted, Patience patience, Calls calls)
      : version_(version),
        interrupted_(std::move(interrupted)),
        patience_(std::move(patience)),
        calls_(std::move(calls)) {}

  /// The first word counts, of each.
  void SetFree(Status status);
  void SetDone(Result<UpdateStats> outcome, std::vector<EngineStats> engines = {});
  /// Takes SetFree back.
  void SetHeld();
  [[nodiscard]] bool over() const;
  /// Something that a time-out should mention: who is lost.
  void SetNote(const std::string& note);

  [[nodiscard]] Version version() const override { return version_; }
  Status WaitSources(TimePoint deadline) override;
  Result<UpdateStats> Wait(TimePoint deadline) override;
  [[nodiscard]] std::vector<EngineStats> Engines() const override;
  [[nodiscard]] Result<std::string> Explain(TimePoint deadline) const override {
    return calls_.explain(deadline);
  }
  void Cancel() override { calls_.cancel(); }

 private:
  struct Told {
    std::optional<Status> free;
    std::optional<Result<UpdateStats>> done;
    std::vector<EngineStats> engines;
    std::string note;
  };
  template <typename Done>
  Woken WaitUntil(TimePoint deadline, const Done& done);
  [[nodiscard]] Status NotYet(Woken woken, const char* what, const char* advice) const;

  const Version version_;
  const Interrupted interrupted_;
  const Patience patience_;
  const Calls calls_;
  const OwnProcess process_;
  Shared<Told> told_;
};

/// Those of a trainer that are not over, and the newest, each with what must be over before it is sent. The
/// loop's.
class UpdateRecords {
 public:
  /// `gate`: null if nothing must be. False if there is one of this number.
  bool Add(int64_t number, std::shared_ptr<UpdateRecord> record, std::shared_ptr<const StreamGate> gate);
  void Remove(int64_t number) { entries_.erase(number); }
  [[nodiscard]] std::shared_ptr<const StreamGate> GateOf(int64_t number) const;

  // Nothing happens where there is none.
  void SetHeld(int64_t number);
  void SetFree(int64_t number, const Status& status);
  /// The controller's word, or `status` without one.
  void SetDone(int64_t number, const Status& status, const std::optional<protocol::Done>& done);
  // Of all.
  void SetNote(const std::string& note);
  void SetAllFree(const Status& status);

 private:
  struct Entry {
    std::shared_ptr<UpdateRecord> record;
    std::shared_ptr<const StreamGate> gate;
  };
  void Prune();

  std::map<int64_t, Entry> entries_;
};

}  // namespace weightcast::worker
