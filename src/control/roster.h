#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "control/members.h"

namespace weightcast::control {

/// Who is here: the workers and their groups, found by session, name and rank, and counts of them that are
/// kept as they change. So no look-up goes through all workers.
///
/// A reference to a worker or a group is valid until one is added or removed.
class Roster {
 public:
  Roster();  ///< The trainers' group alone, which is always there.

  [[nodiscard]] const std::vector<Worker>& workers() const { return workers_; }  ///< By session.
  [[nodiscard]] const std::vector<Group>& groups() const { return groups_; }     ///< By id; trainers first.
  [[nodiscard]] const Group& trainers() const { return groups_.front(); }
  [[nodiscard]] const Worker* Find(SessionId session) const;
  [[nodiscard]] const Group* FindGroup(GroupId id) const;
  /// The engine; the trainers for an empty name.
  [[nodiscard]] const Group* Named(std::string_view engine) const;
  /// nullptr: that rank is not here.
  [[nodiscard]] const Worker* MemberOf(const Group& group, uint32_t rank) const;
  /// Those of a group that are here, by session.
  [[nodiscard]] std::vector<SessionId> MembersOf(const Group& group) const;
  /// The engine whose EngineControl this is; nullptr if it is none.
  [[nodiscard]] const Group* ControlledBy(SessionId session) const;

  /// Trainers that wait for an answer to what they have published.
  [[nodiscard]] uint32_t waiting() const { return waiting_; }
  /// Trainers that offer this number; -1: none.
  [[nodiscard]] uint32_t Offering(int64_t number) const;
  /// What all trainers that are here offer; -1: nothing, or not the same.
  [[nodiscard]] int64_t CommonOffer() const { return offers_.size() == 1 ? offers_.front().number : -1; }
  /// Some trainer waits for an answer to a number below one that another offers.
  [[nodiscard]] bool AnyPassed() const { return waiting_ != 0 && waiting_ != offers_.back().waiting; }
  /// Workers that sleep.
  [[nodiscard]] uint32_t suspended() const { return suspended_; }
  /// Members of the present epoch's plan that have not prepared it.
  [[nodiscard]] uint32_t unprepared() const { return unprepared_; }
  /// That the next new group gets.
  [[nodiscard]] GroupId next_group() const { return next_group_; }
  /// Groups without a worker, but for the trainers'.
  [[nodiscard]] size_t empty_groups() const { return groups_.size() - inhabited_; }

  // --- Changes ---

  /// Lets a worker be changed until the end of the statement, or of its own life. Nothing may be read from
  /// the roster meanwhile.
  class Edit {
   public:
    Edit(Roster& roster, Worker& worker);
    ~Edit();
    Edit(const Edit&) = delete;
    Edit& operator=(const Edit&) = delete;
    Worker* operator->() { return &worker_; }

   private:
    Roster& roster_;
    Worker& worker_;
    const bool served_;
    const protocol::Run run_;
    const int64_t number_;
  };
  /// For control/roster_changes.h. Which worker it is (session, group, rank) never changes.
  [[nodiscard]] Edit Change(const Worker& worker);
  /// May be changed but for what is the roster's, world_size and control.session. It counts as touched.
  Group& Change(const Group& group);
  const Group& AddGroup(std::string engine);
  void RemoveGroup(GroupId id);  ///< An empty one.
  void SetWorldSize(const Group& group, uint32_t world_size);
  void SetControl(const Group& group, const Control& control);
  const Worker& Add(Worker worker);
  void Remove(SessionId session);
  /// Nobody is planned for this epoch yet.
  void BeginEpoch(uint32_t epoch);

  // --- What an event has touched ---
  // A rule that looks at one group alone has to look again only at those that were touched since.

  void Touch(GroupId id);
  void TouchAll();
  /// By id, those that are here.
  [[nodiscard]] std::vector<GroupId> Touched() const;
  /// The event is over.
  void Untouch();
  /// No engine was touched since NoteQuiet.
  [[nodiscard]] bool quiet() const { return quiet_; }
  void NoteQuiet() { quiet_ = true; }

  friend bool operator==(const Roster&, const Roster&) = default;

 private:
  struct Offer {
    int64_t number = -1;
    uint32_t trainers = 0;
    uint32_t waiting = 0;
    friend bool operator==(const Offer&, const Offer&) = default;
  };
  struct ControlOf {
    SessionId session = 0;
    GroupId group = 0;
    friend bool operator==(const ControlOf&, const ControlOf&) = default;
  };

  Worker& At(SessionId session);
  Group& GroupAt(GroupId id);
  /// `sign`: 1 or, before it changes or goes, -1.
  void Count(const Worker& worker, int sign);
  void CountOffer(const Worker& trainer, int sign);
  void FindServed(Group& group);

  std::vector<Worker> workers_;
  std::vector<Group> groups_;
  GroupId next_group_ = 1;
  std::vector<GroupId> by_name_;
  std::vector<ControlOf> controls_;  ///< By session.
  std::vector<Offer> offers_;        ///< By number, with at least one trainer each.
  uint32_t waiting_ = 0;
  uint32_t suspended_ = 0;
  uint32_t epoch_ = 0;
  uint32_t unprepared_ = 0;
  size_t inhabited_ = 1;  ///< Groups with workers, and the trainers'.
  std::vector<GroupId> touched_;
  bool all_touched_ = false;
  bool quiet_ = false;
};

}  // namespace weightcast::control
