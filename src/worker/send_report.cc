#include "worker/send_report.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace weightcast::worker {
namespace {

/// Of versions that nobody asks this trainer to send, the times of the last are kept.
constexpr size_t kMostOffered = 16;

}  // namespace

void SendReport::Offered(int64_t number, TimePoint at) {
  offered_[number] = at;
  if (offered_.size() > kMostOffered) offered_.erase(offered_.begin());
}

void SendReport::Begun(const StartOrder& start) {
  if (spans_.update != start.update) {
    spans_ = {.update = start.update, .spans = {}};
    running_.clear();
  }
  if (const auto offered = offered_.find(start.version.number); offered != offered_.end()) {
    spans_.spans.push_back(
        {.kind = protocol::SpanKind::kGate, .seconds = Seconds(Clock::now() - offered->second)});
    offered_.erase(offered_.begin(), std::next(offered));
  }
  stalls_.Watch(true);
  running_[{start.destination, start.part}] = stalls_.seconds();
}

std::optional<protocol::Spans> SendReport::Fenced(SendFenced fenced) {
  const auto running = running_.find({fenced.destination, fenced.part});
  if (fenced.update != spans_.update || running == running_.end()) return std::nullopt;
  const auto longest = std::ranges::max_element(fenced.spans, {}, &protocol::Span::seconds);
  if (longest != fenced.spans.end())
    longest->stalled = std::min(longest->seconds, stalls_.seconds() - running->second);
  running_.erase(running);
  for (protocol::Span& span : fenced.spans)
    if (spans_.spans.size() < protocol::kMaxSpans) spans_.spans.push_back(std::move(span));
  if (!running_.empty()) return std::nullopt;
  stalls_.Watch(false);
  if (spans_.spans.empty()) return std::nullopt;
  protocol::Spans told{.update = spans_.update, .spans = {}};
  told.spans.swap(spans_.spans);
  return told;
}

}  // namespace weightcast::worker
