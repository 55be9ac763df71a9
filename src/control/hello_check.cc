#include "control/hello_check.h"

#include "control/roster_facts.h"

namespace weightcast::control {
namespace {

/// The roster keeps a place for each rank, also of those that have not come.
constexpr uint32_t kMaxWorldSize = uint32_t{1} << 16;

}  // namespace

Status CheckHello(const MachineConfig& config, const Roster& roster, const Runs& runs,
                  const protocol::Hello& hello) {
  if (hello.job != config.job)
    return Error(Code::kInvalidArgument, "this controller serves job '", config.job, "', not '", hello.job,
                 "'; set the same WEIGHTCAST_JOB everywhere or use another controller");
  WC_RETURN_IF_ERROR(runs.Check(hello.run));
  WC_RETURN_IF_ERROR(runs.Check(hello.version));
  WC_RETURN_IF_ERROR(runs.Check(hello.newest));
  const bool trainer = hello.name.role == protocol::Role::kTrainer;
  if (trainer != hello.name.engine.empty())
    return {Code::kInvalidArgument,
            trainer ? StrCat(protocol::ToString(hello.name), " was given the engine name '",
                             hello.name.engine, "'; leave the option engine out")
                    : StrCat("inference rank ", hello.name.rank,
                             " was given no name of its engine; give one in the option engine")};
  if (hello.world_size == 0 || hello.world_size > kMaxWorldSize)
    return Error(Code::kInvalidArgument, "the world_size of ", protocol::ToString(hello.name), " is ",
                 hello.world_size, "; it must be an integer in [1, ", kMaxWorldSize, "]");
  if (hello.name.role == protocol::Role::kControl)
    return hello.world_size == 1 && hello.name.rank == 0
               ? Status::Ok()
               : Error(Code::kInvalidArgument, protocol::ToString(hello.name), " has rank ", hello.name.rank,
                       " of ", hello.world_size, ", not 0 of 1; use the same weightcast on all hosts");
  if (hello.name.rank >= hello.world_size)
    return Error(Code::kInvalidArgument, protocol::ToString(hello.name), ": rank must be an integer in [0, ",
                 hello.world_size - 1, "], because world_size is ", hello.world_size,
                 "; correct rank or world_size");
  const Group* group = roster.Named(hello.name.engine);
  if (group != nullptr && group->members != 0 && group->world_size != hello.world_size)
    return Error(Code::kInvalidArgument, protocol::ToString(hello.name), " gives world_size ",
                 hello.world_size, " for ", TextOf(*group), "; those already here say ", group->world_size,
                 ": give all the same");
  return Status::Ok();
}

}  // namespace weightcast::control
