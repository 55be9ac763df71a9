#!/usr/bin/env python3
"""One-line mistakes that the model checker has to find.

    mistakes.py list                  NAME|FILE|ARGUMENTS, a line each (CMake reads it)
    mistakes.py write NAME ROOT OUT   the file with the mistake in it; fails unless its text is there once

Each is (name, file, text, what stands there instead, the property that breaks, configuration and changes),
and (file, text, instead) more for each further place where the product is careful.
"""

import pathlib
import sys

RANK = "src/worker/inference_machine.cc"
TRAINER = "src/worker/trainer_machine.cc"
CALLS = "src/worker/inference_calls.cc"
RANK_UPDATE = "src/worker/inference_update.cc"
PEER_SOURCE = "src/worker/peer_source_machine.cc"
ENGINES = "src/control/engine_rule.cc"
RANKS = "src/control/rank_rule.cc"
UPDATES = "src/control/update_rule.cc"
PUBLICATIONS = "src/control/publication_rule.cc"
PLAN = "src/control/plan_rule.cc"
RUNS = "src/control/run_rule.cc"
REPAIR = "src/control/repair_rule.cc"
TERMS = "src/control/terms.cc"
PULLS = "tests/model/pulls.cc"  # Of the model, as the copies themselves are the data plane's.

MISTAKES = [
    # Fences, grants and quarantine.
    (
        "no_fence",
        RANK,
        "    s_.step = Step::kFencing;\n    t_.Add(RevokeGrants{arrived.update});",
        "    update_.BecomeReady();",
        "grant",
        "deep_in_place",
    ),
    (
        "quarantine_skipped",
        RANK_UPDATE,
        "      s_.step = Step::kAborting;\n      return t_.Add(RevokeGrants{s_.update});\n"
        "    case Step::kFencing:",
        "      t_.Add(RevokeGrants{s_.update});\n      return CompleteAbort();\n    case Step::kFencing:",
        "grant",
        "deep_in_place timeouts=1",
    ),
    (
        "grant_before_pause",
        RANK_UPDATE,
        "s_.landing == Landing::kShadow || (s_.user == UserPhase::kBegun && taken_over);",
        "taken_over;",
        "grant",
        "deep_in_place",
    ),
    (
        "served_while_granted",
        RANK_UPDATE,
        "  if (s_.landing == Landing::kInPlace) s_.served = {};\n",
        "",
        "grant",
        "deep_in_place",
    ),
    (
        "sources_freed_in_flight",
        TRAINER,
        "if (publication.free || !publication.release || in_flight) return;",
        "if (publication.free || !publication.release) return;",
        "sources",
        "deep_in_place timeouts=1",
    ),
    (
        "a_refused_switch_counts",
        RANK,
        "  if (run.status.ok()) return update_.Switched();\n",
        "  return update_.Switched();\n",
        "two steps",
        "deep_loader",
    ),
    (
        "a_refusal_comes_after_the_copy",
        RANK,
        "    if (!run.status.ok()) s_.touched = s_.landing == Landing::kInPlace || run.changed;\n"
        "    if (s_.abort) return update_.CompleteAbort();",
        "    s_.touched = s_.landing == Landing::kInPlace;\n"
        "    if (s_.abort) return update_.CompleteAbort();",
        "mixture",
        "deep_loader ranks=1 search=departures timeouts=1",
    ),
    (
        "registered_while_sources_write",
        CALLS,
        "if (s_.step > Step::kRequested || (",
        "if ((",
        "grant",
        "deep_shadow registers=1",
    ),
    # Copies by the target's own engine.
    (
        "signal_without_the_second_check",
        PULLS,
        "return w.job != Job::kGone;",
        "return true;",
        "given",
        "pull_deep_in_place paths=1",
    ),
    (
        "revoked_before_own_copies_are_over",
        PULLS,
        "return w.wire == Wire::kPulling && w.target",
        "return false && w.target",
        "grant",
        "pull_deep_in_place timeouts=1",
    ),
    # Completeness.
    (
        "count_instead_of_set",
        "tests/model/arrivals.cc",
        "arrived | (1 << source)",
        "(arrived << 1) | (source >= 0 ? 1 : 0)",
        "given",
        "wide_in_place repeats=1",
    ),
    (
        "ready_when_one_is",
        RANKS,
        "  if (AllAt(worker.group, RankStep::kReady)) rules_.engines->",
        "  rules_.engines->",
        "two steps",
        "deep_in_place",
    ),
    # Parts.
    (
        "next_part_when_one_rank_is_ready",
        ENGINES,
        "  if (target.step != EngineStep::kWriting) return;\n",
        "  if (target.step != EngineStep::kWriting) return;\n"
        "  const bool last = IsLastPart(roster_, target.group, target.part);\n"
        "  if (last && !rules_.ranks->AllAt(target.group, RankStep::kReady)) return;\n",
        "parts",
        "deep_parts",
        (RANKS, "  if (AllAt(worker.group, RankStep::kReady)) rules_.engines->", "  rules_.engines->"),
    ),
    (
        "next_part_granted_before_it_is_handed_on",
        RANK_UPDATE,
        "  if (s_.call == UserCall::kReceive) HandOver();\n",
        "  if (s_.call == UserCall::kReceive) HandOver();\n  s_.handover = Handover::kNone;\n  TryOpen();\n",
        "parts",
        "deep_parts",
    ),
    # Policy all.
    (
        "start_before_all_engines_have_granted",
        ENGINES,
        "  if (state_.ungranted() != 0 && rules_.updates->SwitchesTogether()) return;",
        "",
        "policy",
        "in_place_all",
    ),
    (
        "commit_before_all_engines_are_ready",
        ENGINES,
        "  const bool waiting = state_.counts().Before(EngineStep::kReady) != 0;\n"
        "  if (waiting && rules_.updates->SwitchesTogether()) return;",
        "",
        "policy",
        "shadow_all",
    ),
    (
        "commit_while_another_engine_is_repaired",
        ENGINES,
        "waiting = state_.counts().Before(EngineStep::kReady) != 0;",
        "waiting = state_.counts().At(EngineStep::kWriting) != 0;",
        "policy",
        "peers_shadow together=1 paths=1 search=departures",
    ),
    (
        "released_before_all_engines_are_ready",
        UPDATES,
        "if (!any || engines.Before(EngineStep::kReady) != 0) return;",
        "if (!any || engines.Before(EngineStep::kWriting) != 0) return;",
        "sources",
        "peers_shadow",
    ),
    (
        "outcome_of_who_is_out",
        ENGINES,
        ".committed = target.step == EngineStep::kDone,",
        ".committed = target.step >= EngineStep::kDone,",
        "outcome",
        "deep_in_place timeouts=1 search=departures",
    ),
    # Two steps.
    (
        "serve_before_all_have_committed",
        RANKS,
        "  if (AllAt(worker.group, RankStep::kCommitted))\n",
        "",
        "two steps",
        "deep_shadow",
    ),
    (
        "served_at_the_switch",
        RANK_UPDATE,
        "  s_.step = Step::kCommitted;\n  s_.state = EngineState::kCommitted;",
        "  s_.step = Step::kCommitted;\n  s_.served = s_.version;\n  s_.state = EngineState::kCommitted;",
        "mixture",
        "deep_shadow",
    ),
    (
        "copy_while_the_engine_runs",
        RANK_UPDATE,
        "if (s_.step != Step::kReady || !s_.commit || !waiting || s_.user != UserPhase::kBegun) return;",
        "if (s_.step != Step::kReady || !s_.commit || (waiting && s_.user != UserPhase::kBegun)) return;",
        "mixture",
        "deep_shadow",
    ),
    (
        "old_version_after_an_abort",
        RANK_UPDATE,
        "const bool lost = s_.touched;",
        "const bool lost = false;",
        "mixture",
        "deep_in_place timeouts=1 search=departures",
    ),
    (
        "abort_says_not_started",
        RANKS,
        ".version = update.version, .started = rank.started});",
        ".version = update.version, .started = false});",
        "mixture",
        "deep_in_place timeouts=1 search=departures",
    ),
    (
        "abort_says_started",
        RANKS,
        ".version = update.version, .started = rank.started});",
        ".version = update.version, .started = true});",
        "loss",
        "deep_in_place timeouts=1 search=departures",
    ),
    (
        "commit_of_another_attempt",
        RANK,
        "if (!s_.IsCurrent(commit.update, Step::kReady) || !s_.IsLastPart()) return;",
        "if (s_.step != Step::kReady || !s_.IsLastPart()) return;",
        "two steps",
        "deep_shadow stragglers=1",
    ),
    (
        "serve_taken_back",
        ENGINES,
        "if (target->step < EngineStep::kServing) return Out",
        "if (target->step <= EngineStep::kServing) return Out",
        "taken back",
        "deep_in_place kills=1",
    ),
    # Ids, terms, epochs.
    (
        "no_attempt_check_at_the_controller",
        RANKS,
        "if (rank == nullptr || rank->id != update) return nullptr;",
        "if (rank == nullptr) return nullptr;",
        "two steps",
        "deep_shadow stragglers=1",
    ),
    (
        "no_attempt_check_at_the_rank",
        RANK,
        "if (!s_.IsCurrent(serve.update, Step::kCommitted)) return;",
        "if (s_.step != Step::kCommitted || s_.update.epoch != serve.update.epoch) return;",
        "mixture",
        "deep_shadow stragglers=1",
    ),
    (
        "old_term_accepted",
        RANK,
        "if (s_.ended || request.update.term != s_.term || request.update <= s_.closed) return;",
        "if (s_.ended || request.update <= s_.closed) return;",
        "liveness",
        "deep_in_place hold=0 versions=1 cancels=1 controller=1 stragglers=1 search=departures",
    ),
    (
        "closed_update_granted_again",
        RANK,
        "request.update.term != s_.term || request.update <= s_.closed) return;",
        "request.update.term != s_.term) return;",
        "liveness",
        "deep_in_place stragglers=1",
    ),
    # Repair.
    (
        "gives_another_version",
        PEER_SOURCE,
        "if (event.held != start.version || event.held.number < 0) {",
        "if (event.held.number < 0) {",
        "given",
        "peers_shadow kills=1 restarts=1 timeouts=1 search=departures live_every=8",
        # The controller looks too: only both together are a mistake that can be seen.
        (REPAIR, "!worker.shares || worker.holds != version || ", "!worker.shares || "),
    ),
    (
        "gives_what_it_serves_for_what_it_holds",
        RANK,
        "state.shares && !state.reclaiming ? state.landed : Version{};",
        "state.shares && !state.reclaiming ? state.served : Version{};",
        "liveness",
        "peers_shadow kills=1 restarts=1 timeouts=1 search=departures live_every=8",
    ),
    (
        "holds_a_spare_buffer_that_was_granted_again",
        RANK_UPDATE,
        "  s_.landed = {};\n  s_.state = EngineState::kUpdating;",
        "  s_.state = EngineState::kUpdating;",
        "given",
        "peers_shadow",
    ),
    (
        "memory_taken_back_before_the_fence",
        PEER_SOURCE,
        "    if (reclaimed.leaves) LeavePlan();\n",
        "    s_.sendings.clear();\n    if (reclaimed.leaves) LeavePlan();\n",
        "given",
        "late_shadow live_every=0",
    ),
    (
        "granted_while_others_read",
        RANK_UPDATE,
        "  if (s_.lent) {  // Nobody may read what is being written.",
        "  if (s_.lent && s_.landing == Landing::kInPlace) {",
        "given",
        "late_shadow",
    ),
    (
        "repaired_rank_keeps_its_old_attempt",
        RANKS,
        "    rank.id = update.id;\n"
        "    rank.started = false;\n"
        "    asked.push_back(rank.session);\n"
        "  }\n"
        "  if (asked.empty()) return;\n"
        "  out_.Add(SendAll{std::move(asked),\n"
        "                   protocol::GrantRequest{.update = update.id,",
        "    if (rank.id.sequence == 0) rank.id = update.id;\n"
        "    rank.started = false;\n"
        "    asked.push_back(rank.session);\n"
        "  }\n"
        "  if (asked.empty()) return;\n"
        "  const protocol::UpdateId kept = state_.Of(asked.front())->id;\n"
        "  out_.Add(SendAll{std::move(asked),\n"
        "                   protocol::GrantRequest{.update = kept,",
        "ids",
        "replicas_shadow kills=1 search=departures live_every=0",
    ),
    # Runs.
    (
        "bytes_of_an_older_run",
        PUBLICATIONS,
        "if (message.run != rules_.runs->run()) return RefusePublished",
        "if (message.run.number > rules_.runs->run().number) return RefusePublished",
        "given",
        "replicas_shadow kills=1 restarts=1 live_every=1",
    ),
    (
        "trainers_of_different_pasts",
        RUNS,
        "hello.run != state_.run && hello.run != state_.before;",
        "false;",
        "mixture",
        "wide_in_place kills=1 restarts=1 stops=1 controller=1 timeouts=1 paths=1 live_every=64",
    ),
    (
        "a_version_is_taken_back",
        REPAIR,
        "|| TakesBack(roster_, group, version)) continue;",
        "|| protocol::RunAndNumber(version) < protocol::RunAndNumber(group.served)) continue;",
        "taken back",
        "in_place_all live_every=64",
    ),
    # Ends.
    (
        "wait_cut_short_stays_begun",
        RANK_UPDATE,
        "std::exchange(s_.cut_short, false) ? UserPhase::kOutside : UserPhase::kBegun;",
        "UserPhase::kBegun;",
        "liveness",
        "deep_in_place interrupts=1 controller=1 search=departures",
    ),
    (
        "whoever_stays_is_no_member_of_the_run",
        PLAN,
        "rules_.runs->Join(worker.rank, worker.incarnation);",
        ";",
        "mixture",
        "wide_shadow kills=2 restarts=2 versions=1 live_every=8 search=departures",
    ),
    (
        "abort_forgotten_when_the_memory_is_free",
        RANK,
        "  if (s_.step == Step::kAborting && s_.fenced && !s_.uncertain) return update_.CompleteAbort();\n",
        "",
        "liveness",
        "peers_in_place together=1 paths=1 cancels=1 search=departures live_every=1",
    ),
    (
        "abort_forgotten_when_it_is_told_late",
        RANK_UPDATE,
        "return s_.fenced ? CompleteAbort() : void();",
        "return;",
        "liveness",
        "deep_in_place paths=1 timeouts=1 search=departures",
    ),
    (
        "abort_forgotten_when_the_fence_is_late",
        RANK,
        "return s_.uncertain ? void() : update_.CompleteAbort();",
        "return;",
        "liveness",
        "deep_in_place timeouts=1 search=departures",
    ),
    (
        "ready_of_a_broken_source_commits",
        UPDATES,
        "  if (message.destination < 0 && !gives_up) return SourceBroken(worker, message.update, reason);\n",
        "",
        "source",
        "peers_shadow together=1 failures=1 search=departures live_every=0",
    ),
    (
        "update_zero",
        UPDATES,
        "if (update.fresh || state_.sequence == 0) {",
        "if (update.fresh) {",
        "ids",
        "deep_in_place kills=1 restarts=1",
    ),
    (
        "term_is_not_learnt",
        TERMS,
        "  if (told <= own) return own.number;\n",
        "  if (told.number <= protocol::kMaxTerm) return own.number;\n",
        "liveness",
        "deep_shadow controller=1 search=departures",
    ),
    (
        "equal_terms_are_not_ordered",
        TERMS,
        "  if (told <= own) return own.number;\n",
        "  if (told.number <= own.number) return own.number;\n",
        "liveness",
        "deep_shadow controller=1 search=departures",
    ),
    (
        "term_is_taken_twice",
        TERMS,
        "  return told.number + 1;\n",
        "  return told.number;\n",
        "liveness",
        "deep_shadow ranks=1 rivals=1 astray=2 search=departures",
    ),
]


def line_of(mistake: tuple) -> str:
    name, file, _, _, wanted, arguments, *more = mistake
    files = ",".join([file, *(place[0] for place in more)])
    return f"{name}|{files}|{arguments} expect={wanted.replace(' ', '_')}"


def write(name: str, root: pathlib.Path, out: pathlib.Path) -> None:
    _, file, text, instead, _, _, *more = next(mistake for mistake in MISTAKES if mistake[0] == name)
    sources = []
    for place, old, new in [(file, text, instead), *more]:
        source = (root / place).read_text()
        if source.count(old) != 1:
            sys.exit(
                f"mistakes.py: {name}: its text is {source.count(old)} times in {place}; adapt the mistake"
            )
        sources.append(source.replace(old, new))
    out.write_text("\n".join(sources))


def main() -> None:
    if sys.argv[1] == "list":
        print("\n".join(line_of(mistake) for mistake in MISTAKES))
    else:
        write(sys.argv[2], pathlib.Path(sys.argv[3]), pathlib.Path(sys.argv[4]))


if __name__ == "__main__":
    main()
