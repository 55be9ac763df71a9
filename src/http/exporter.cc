#include "http/exporter.h"

#include <map>
#include <mutex>
#include <utility>

#include "base/log.h"
#include "trace/metrics.h"

namespace weightcast::http {
namespace {

constexpr size_t kMost = 64;

Answer AnswerTo(const Request& request) {
  if (request.path == "/metrics") return MetricsResponse();
  return PlainResponse(404, "there is only /metrics here");
}

Result<std::shared_ptr<Exporter>> Start(const std::string& where) {
  WC_ASSIGN_OR_RETURN(Place place, Place::Parse(where, "setting metrics", 9470));
  WC_ASSIGN_OR_RETURN(
      auto server,
      Server::Start(
          {.place = std::move(place), .thread_name = "wc-metrics", .most = kMost, .answer_to = AnswerTo}));
  auto exporter = std::make_shared<Exporter>(std::move(server));
  WC_LOG(kInfo, "metrics at http://", exporter->address(), "/metrics");
  return exporter;
}

}  // namespace

Response MetricsResponse() {
  return {.type = "text/plain; version=0.0.4; charset=utf-8",
          .body = std::make_shared<const std::string>(trace::PrometheusText())};
}

Result<std::shared_ptr<Exporter>> Exporter::For(const std::string& where) {
  static std::mutex mutex;
  static auto* exporters = new std::map<std::string, std::weak_ptr<Exporter>>;
  const std::lock_guard lock(mutex);
  std::weak_ptr<Exporter>& known = (*exporters)[where];
  if (auto exporter = known.lock()) return exporter;
  WC_ASSIGN_OR_RETURN(auto exporter, Start(where));
  known = exporter;
  return exporter;
}

}  // namespace weightcast::http
