#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "control/members.h"
#include "control/offers.h"
#include "control/touched_groups.h"

namespace weightcast::control {

/// Who is here: the workers and their groups, found by session, name and rank, and counts of them that are
/// kept as they change. So no look-up goes through all workers.
///
/// A reference to a worker or a group is valid until one is added or removed.
class Roster {
 public:
  [[nodiscard]] const std::vector<Worker>& workers() const { return workers_; }  ///< By session.
  [[nodiscard]] const std::vector<Group>& groups() const { return groups_; }     ///< By id; trainers first.
  [[nodiscard]] const Group& trainers() const { return groups_.front(); }
  [[nodiscard]] const Worker* Find(SessionId session) const;
  [[nodiscard]] const Group* FindGroup(GroupId id) const;
  /// The engine; the trainers for an empty name.
  [[nodiscard]] const Group* Named(std::string_view engine) const;
  /// The engine whose EngineControl this is; nullptr if it is none.
  [[nodiscard]] const Group* ControlledBy(SessionId session) const;

  /// Of all trainers that are here.
  [[nodiscard]] const Offers& offers() const { return offers_; }
  /// What changes here counts as touched. A rule adds a group for which its own slice changes.
  [[nodiscard]] TouchedGroups& touched() { return touched_; }
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
  /// For WorkerChange. Which worker it is (session, group, rank) never changes.
  [[nodiscard]] Edit Change(const Worker& worker);
  /// For GroupChange. All but what is the roster's, world_size and control.session. It counts as touched.
  Group& Change(const Group& group);
  const Group& AddGroup(std::string engine);
  void RemoveGroup(GroupId id);  ///< An empty one.
  void SetWorldSize(const Group& group, uint32_t world_size);
  void SetControl(const Group& group, const Control& control);
  const Worker& Add(Worker worker);
  void Remove(SessionId session);
  /// Nobody is planned for this epoch yet.
  void BeginEpoch(uint32_t epoch);

  friend bool operator==(const Roster&, const Roster&) = default;

 private:
  struct ControlOf {
    SessionId session = 0;
    GroupId group = 0;
    friend bool operator==(const ControlOf&, const ControlOf&) = default;
  };

  /// `sign`: 1 or, before it changes or goes, -1.
  void Count(const Worker& worker, int sign);

  std::vector<Worker> workers_;
  std::vector<Group> groups_ = {Group()};  ///< The trainers', which is always there.
  GroupId next_group_ = 1;
  std::vector<GroupId> by_name_ = {kTrainers};
  std::vector<ControlOf> controls_;  ///< By session.
  Offers offers_;
  uint32_t suspended_ = 0;
  uint32_t epoch_ = 0;
  uint32_t unprepared_ = 0;
  size_t inhabited_ = 1;  ///< Groups with workers, and the trainers'.
  TouchedGroups touched_;
};

}  // namespace weightcast::control
