#include "control/explain_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/json.h"

namespace weightcast::control {
namespace {

using Json = nlohmann::ordered_json;

Json TimeOf(double seconds) { return seconds == kNever ? Json(nullptr) : Json(seconds); }

Json SpanJson(const protocol::Span& span) {
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

Json RankJson(const RankTimeline& rank) {
  const Json parts = JsonArray(rank.parts, [](const auto& part) -> Json {
    return {{"asked", TimeOf(part.asked)},
            {"granted", TimeOf(part.granted)},
            {"started", TimeOf(part.started)},
            {"ready", TimeOf(part.ready)}};
  });
  const Json routes = JsonArray(rank.routes, [](const auto& route) -> Json {
    return {{"source", route.source}, {"bytes", route.bytes}, {"seconds", route.seconds}};
  });
  return {{"name", rank.name},
          {"engine", rank.engine},
          {"parts", parts},
          {"committing", TimeOf(rank.committing)},
          {"committed", TimeOf(rank.committed)},
          {"serve", TimeOf(rank.serve)},
          {"serving", TimeOf(rank.serving)},
          {"routes", routes},
          {"spans", JsonArray(rank.spans, SpanJson)}};
}

Json SourceJson(const SourceTimeline& source) {
  const Json spans = JsonArray(source.sendings, [](const auto& sending) {
    Json one = SpanJson(sending.span);
    one["to"] = sending.to;
    return one;
  });
  return {{"name", source.name},
          {"published", TimeOf(source.published)},
          {"started", TimeOf(source.started)},
          {"waited", TimeOf(source.waited)},
          {"spans", spans}};
}

Json CostJson(const Cost& cost) {
  return {{"cause", NameOf(cost.cause)},
          {"worker", cost.worker},
          {"victim", cost.victim},
          {"seconds", cost.seconds}};
}

Json SegmentJson(const Segment& segment) {
  return {{"step", NameOf(segment.step)},
          {"worker", segment.worker},
          {"begin", segment.begin},
          {"seconds", segment.seconds},
          {"costs", JsonArray(segment.costs, CostJson)}};
}

Json VerdictJson(const Verdict& verdict) {
  return {{"slow", verdict.slow},           {"cause", NameOf(verdict.cause)}, {"worker", verdict.worker},
          {"victim", verdict.victim},       {"seconds", verdict.seconds},     {"share", verdict.share},
          {"usual", TimeOf(verdict.usual)}, {"history", verdict.history},     {"text", verdict.text},
          {"remedy", verdict.remedy}};
}

Json JsonOf(const Explained& update) {
  const UpdateTimeline& timeline = update.timeline;
  const Json commands = JsonArray(timeline.commands, [](const auto& command) -> Json {
    return {{"engine", command.engine},
            {"command", protocol::NameOf(command.command)},
            {"asked", TimeOf(command.asked)},
            {"answered", TimeOf(command.answered)}};
  });
  const Json stalls = JsonArray(timeline.stalls, [](const auto& stall) -> Json {
    return {{"begin", stall.begin}, {"seconds", stall.seconds}};
  });
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
          {"verdict", VerdictJson(update.verdict)},
          {"path", JsonArray(update.path, SegmentJson)},
          {"costs", JsonArray(update.costs, CostJson)},
          {"ranks", JsonArray(timeline.ranks, RankJson)},
          {"sources", JsonArray(timeline.sources, SourceJson)},
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
