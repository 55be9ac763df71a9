#include "control/update_meter.h"

#include "base/wall_clock.h"

namespace weightcast::control {
namespace {

/// The first of its kind in this update.
void Mark(UpdateClock& clock, const protocol::UpdateId& update, std::string_view moment) {
  if (clock.update != update) return;
  for (const auto& [name, seconds] : clock.moments)
    if (name == moment) return;
  clock.moments.emplace_back(moment, Seconds(Clock::now() - clock.began));
}

}  // namespace

void UpdateMeter::Measure(const std::string& model, UpdateClock& clock,
                          protocol::ControllerMessage& message) {
  if (const auto* request = std::get_if<protocol::GrantRequest>(&message)) {
    if (clock.update == request->update) return;
    clock.update = request->update;
    clock.began = Clock::now();
    clock.ready.reset();
    clock.moments.clear();
  } else if (const auto* start = std::get_if<protocol::Start>(&message)) {
    Mark(clock, start->update, "start");
  } else if (const auto* commit = std::get_if<protocol::Commit>(&message)) {
    Mark(clock, commit->update, "commit");
  } else if (const auto* serve = std::get_if<protocol::Serve>(&message)) {
    Mark(clock, serve->update, "serve");
  } else if (const auto* release = std::get_if<protocol::Release>(&message)) {
    Mark(clock, release->update, "release");
    if (clock.update == release->update && !clock.ready) clock.ready = Clock::now();
  } else if (auto* done = std::get_if<protocol::Done>(&message)) {
    if (clock.update == done->update) MeasureEnd(model, clock, *done);
  }
}

/// A trainer that was refused its version gets one of its own; the first of an update counts.
void UpdateMeter::MeasureEnd(const std::string& model, UpdateClock& clock, protocol::Done& done) {
  const Duration took = clock.ready.value_or(Clock::now()) - clock.began;
  done.seconds = Seconds(took);
  clock.senders = done.senders;
  clock.routes = done.routes;
  if (clock.measured == done.update) return;
  clock.measured = done.update;
  Mark(clock, done.update, "done");
  if (done.met_policy) {
    updates_.Add(took);
    bytes_.Add(done.bytes);
  }
  if (page_ == nullptr) return;
  page_->Add({.model = model, .ended = UnixMicroseconds() / 1000, .done = done, .moments = clock.moments});
}

}  // namespace weightcast::control
