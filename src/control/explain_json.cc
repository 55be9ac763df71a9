#include "control/explain_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/json.h"

namespace weightcast::control {
namespace {

using Json = nlohmann::ordered_json;

Json TimeOf(double seconds) { return seconds == kNever ? Json(nullptr) : Json(seconds); }

Json JsonOf(const protocol::Span& span) {
  Json json{{"kind", protocol::NameOf(span.kind)}, {"seconds", span.seconds}};
  if (span.stalled > 0) json["stalled"] = span.stalled;
  if (span.part > 0) json["part"] = span.part;
  if (span.bytes > 0) {
    json["bytes"] = span.bytes;
    json["pieces"] = span.pieces;
    json["chunk"] = span.chunk;
    json["path"] = span.path;
  }
  return json;
}

Json JsonOf(const RankTimeline& rank) {
  Json parts = Json::array();
  for (const auto& part : rank.parts)
    parts.push_back({{"asked", TimeOf(part.asked)},
                     {"granted", TimeOf(part.granted)},
                     {"started", TimeOf(part.started)},
                     {"ready", TimeOf(part.ready)}});
  Json routes = Json::array();
  for (const auto& route : rank.routes)
    routes.push_back({{"source", route.source}, {"bytes", route.bytes}, {"seconds", route.seconds}});
  Json spans = Json::array();
  for (const auto& span : rank.spans) spans.push_back(JsonOf(span));
  return {{"name", rank.name},
          {"engine", rank.engine},
          {"parts", parts},
          {"committing", TimeOf(rank.committing)},
          {"committed", TimeOf(rank.committed)},
          {"serve", TimeOf(rank.serve)},
          {"serving", TimeOf(rank.serving)},
          {"routes", routes},
          {"spans", spans}};
}

Json JsonOf(const SourceTimeline& source) {
  Json spans = Json::array();
  for (const auto& [to, span] : source.sendings) {
    Json one = JsonOf(span);
    one["to"] = to;
    spans.push_back(std::move(one));
  }
  return {{"name", source.name},
          {"published", TimeOf(source.published)},
          {"started", TimeOf(source.started)},
          {"waited", TimeOf(source.waited)},
          {"spans", spans}};
}

Json JsonOf(const Cost& cost) {
  return {{"cause", NameOf(cost.cause)},
          {"worker", cost.worker},
          {"victim", cost.victim},
          {"seconds", cost.seconds}};
}

Json JsonOf(const Segment& segment) {
  Json costs = Json::array();
  for (const Cost& cost : segment.costs) costs.push_back(JsonOf(cost));
  return {{"step", NameOf(segment.step)},
          {"worker", segment.worker},
          {"begin", segment.begin},
          {"seconds", segment.seconds},
          {"costs", costs}};
}

Json JsonOf(const Verdict& verdict) {
  return {{"slow", verdict.slow},           {"cause", NameOf(verdict.cause)}, {"worker", verdict.worker},
          {"victim", verdict.victim},       {"seconds", verdict.seconds},     {"share", verdict.share},
          {"usual", TimeOf(verdict.usual)}, {"history", verdict.history},     {"text", verdict.text},
          {"remedy", verdict.remedy}};
}

Json JsonOf(const Explained& update) {
  const UpdateTimeline& timeline = update.timeline;
  Json ranks = Json::array();
  Json sources = Json::array();
  Json path = Json::array();
  Json costs = Json::array();
  Json commands = Json::array();
  Json stalls = Json::array();
  for (const auto& rank : timeline.ranks) ranks.push_back(JsonOf(rank));
  for (const auto& source : timeline.sources) sources.push_back(JsonOf(source));
  for (const auto& segment : update.path) path.push_back(JsonOf(segment));
  for (const auto& cost : update.costs) costs.push_back(JsonOf(cost));
  for (const auto& command : timeline.commands)
    commands.push_back({{"engine", command.engine},
                        {"command", protocol::NameOf(command.command)},
                        {"asked", TimeOf(command.asked)},
                        {"answered", TimeOf(command.answered)}});
  for (const auto& stall : timeline.stalls)
    stalls.push_back({{"begin", stall.begin}, {"seconds", stall.seconds}});
  return {{"model", timeline.model},
          {"version", timeline.version.number},
          {"label", timeline.version.label},
          {"run", timeline.version.run},
          {"sequence", timeline.id.sequence},
          {"attempt", timeline.id.attempt},
          {"began_unix_ms", timeline.began_unix_ms},
          {"ok", timeline.met_policy},
          {"reason", timeline.reason},
          {"seconds", update.seconds},
          {"bytes", timeline.bytes()},
          {"opened", TimeOf(timeline.opened)},
          {"done", TimeOf(timeline.done)},
          {"verdict", JsonOf(update.verdict)},
          {"path", path},
          {"costs", costs},
          {"ranks", ranks},
          {"sources", sources},
          {"commands", commands},
          {"stalls", stalls}};
}

}  // namespace

std::string ToJson(const Explained& update) { return JsonText(JsonOf(update)); }

std::string ToJson(const Explanations& updates) {
  std::string text = "[";
  for (const auto& update : updates) {
    if (text.size() > 1) text += ',';
    text += ToJson(*update);
  }
  return text + "]";
}

Explanations Choose(const Explanations& updates, const protocol::AskUpdates& ask) {
  Explanations chosen;
  for (size_t i = updates.size(); i-- > 0 && chosen.size() < ask.last;) {
    if (ask.number < 0 || updates[i]->timeline.version.number == ask.number) chosen.push_back(updates[i]);
  }
  std::ranges::reverse(chosen);
  return chosen;
}

}  // namespace weightcast::control
