#include "control/page_server.h"

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <utility>

#include "base/log.h"
#include "base/strings.h"
#include "control/page_json.h"
#include "http/exporter.h"
#include "http/page.h"
#include "http/server.h"
#include "stream/secret.h"

namespace weightcast::control {
namespace {

using http::Answer;
using http::Request;
using http::Response;
using http::Text;

constexpr Duration kSilent = std::chrono::seconds(5);
/// Between two states for one client, and what states may cost all clients together.
constexpr Duration kLeastInterval = std::chrono::milliseconds(100);
constexpr double kMostBytesPerSecond = 50e6;
constexpr std::string_view kBearer = "Bearer ";

Text Shared(std::string text) { return std::make_shared<const std::string>(std::move(text)); }

Response JsonResponse(std::string text) {
  text += '\n';
  return {.type = "application/json", .body = Shared(std::move(text))};
}

/// Nothing but this server's own files may run on the page, or be talked to by it.
Response FileResponse(const http::PageFile& file, unsigned status) {
  return {.status = status,
          .type = std::string(file.type),
          .body = Shared(std::string(file.body)),
          .headers = {
              {"Content-Security-Policy",
               "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
               "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"},
              {"Referrer-Policy", "no-referrer"}}};
}

/// "localhost", 127.0.0.1 or ::1, with a port or without. Another name is that of a web page which had its
/// own name resolve to this host, to read what this user's browser can.
bool IsLoopbackName(std::string_view host) {
  const std::string_view name =
      host.starts_with('[') ? host.substr(0, host.find(']') + 1) : host.substr(0, host.find(':'));
  const bool numeric = name.find_first_not_of("0123456789.") == std::string_view::npos;
  return name.empty() || name == "localhost" || name == "[::1]" || (numeric && name.starts_with("127."));
}

/// What all clients share, so that a slow one costs no memory of its own. On the server's thread alone.
class Texts {
 public:
  struct Update {
    uint64_t number = 0;
    uint64_t change = 0;
    Text event;
    size_t begin = 0;  ///< Of the JSON within the event.
    [[nodiscard]] std::string_view json() const {
      return std::string_view(*event).substr(begin, event->size() - begin - kEnd.size());
    }
  };
  static constexpr std::string_view kEnd = "\n\n";

  explicit Texts(std::shared_ptr<PageState> state) : state_(std::move(state)) {}

  /// Takes what is shown; a state that reads like the one before is the same. A large job's states take time:
  /// no more than a tenth of this thread's. Returns when to look again for a state that was put off.
  TimePoint Look() {
    const TimePoint begin = Clock::now();
    const PageState::Shown shown = state_->shown();
    if (shown.count == seen_) return TimePoint::max();
    if (begin < next_look_) return next_look_;
    seen_ = shown.count;
    std::string event = StrCat(kStateHead, StateJson(*shown.view), kEnd);
    if (state_event_ == nullptr || event != *state_event_) {
      state_event_ = Shared(std::move(event));
      ++state_count_;
    }
    const TimePoint end = Clock::now();
    next_look_ = end + 10 * (end - begin);
    return TimePoint::max();
  }
  void LookForUpdates() {
    for (const auto& record : state_->UpdatesAfter(updates_.empty() ? 0 : updates_.back().change)) {
      const std::string head = StrCat("event: update\nid: ", state_->feed(), ".", record->change, "\ndata: ");
      std::erase_if(updates_, [&](const Update& one) { return one.number == record->number; });
      updates_.push_back({.number = record->number,
                          .change = record->change,
                          .event = Shared(StrCat(head, UpdateJson(*record), kEnd)),
                          .begin = head.size()});
    }
    while (updates_.size() > PageState::kMostUpdates)
      updates_.erase(std::ranges::min_element(updates_, {}, &Update::number));
  }

  /// nullptr until the controller has shown something.
  [[nodiscard]] const Text& state_event() const { return state_event_; }
  [[nodiscard]] std::string_view state_json() const {
    if (state_event_ == nullptr) return "null";
    const std::string_view event(*state_event_);
    return event.substr(kStateHead.size(), event.size() - kStateHead.size() - kEnd.size());
  }
  [[nodiscard]] uint64_t state_count() const { return state_count_; }
  [[nodiscard]] const std::string& feed() const { return state_->feed(); }
  /// By change.
  [[nodiscard]] const std::deque<Update>& updates() const { return updates_; }
  [[nodiscard]] Duration SinceShown() const { return Clock::now() - state_->shown().at; }
  size_t feeds = 0;

 private:
  static constexpr std::string_view kStateHead = "event: state\ndata: ";
  const std::shared_ptr<PageState> state_;
  uint64_t seen_ = 0;
  TimePoint next_look_;
  uint64_t state_count_ = 0;
  Text state_event_;
  std::deque<Update> updates_;
};

/// First all that there is, then what is new. The state comes before the updates: it says whose they are.
class EventFeed final : public http::Feed {
 public:
  EventFeed(std::shared_ptr<Texts> texts, std::string_view last_event) : texts_(std::move(texts)) {
    ++texts_->feeds;
    texts_->Look();
    const size_t dot = last_event.find('.');
    // Numbers of another controller say nothing here.
    if (dot == std::string_view::npos || last_event.substr(0, dot) != texts_->feed()) return;
    change_ = ParseNumber<uint64_t>(last_event.substr(dot + 1)).value_or(0);
  }
  ~EventFeed() override { --texts_->feeds; }

  Text Next(TimePoint now, TimePoint& again) override {
    again = texts_->Look();
    const bool changed = texts_->state_count() != state_;
    if (changed && now >= next_state_) {
      state_ = texts_->state_count();
      const double bytes = static_cast<double>(texts_->state_event()->size() * texts_->feeds);
      next_state_ = now + std::max(kLeastInterval, FromSeconds(bytes / kMostBytesPerSecond));
      return texts_->state_event();
    }
    if (changed) again = std::min(again, next_state_);
    texts_->LookForUpdates();
    const auto& updates = texts_->updates();
    const auto next = std::ranges::upper_bound(updates, change_, {}, &Texts::Update::change);
    if (next == updates.end()) return nullptr;
    change_ = next->change;
    return next->event;
  }

 private:
  const std::shared_ptr<Texts> texts_;
  uint64_t change_ = 0;
  uint64_t state_ = 0;
  TimePoint next_state_;
};

class Routes {
 public:
  Routes(std::shared_ptr<PageState> state, std::optional<stream::Secret> token)
      : texts_(std::make_shared<Texts>(std::move(state))), token_(std::move(token)) {}

  Answer operator()(const Request& request) const {
    if (request.path == "/healthz") return Health();
    const bool allowed = MayRead(request);
    if (const http::PageFile* file = Find(request.path)) {
      // The page itself says nothing of the job. Without a token it asks for one.
      return FileResponse(*file, allowed || request.path != "/" ? 200 : 401);
    }
    if (!IsKnown(request.path)) return http::PlainResponse(404, "no such path; see docs/http.md");
    if (!allowed) return Refusal();
    if (request.path == "/metrics") return http::MetricsResponse();
    if (request.path == "/api/events") return std::make_unique<EventFeed>(texts_, request.last_event_id);
    if (request.path == "/api/updates") return Updates();
    texts_->Look();
    return JsonResponse(std::string(texts_->state_json()));
  }

 private:
  static const http::PageFile* Find(std::string_view path) {
    for (const http::PageFile& file : http::PageFiles())
      if (file.path == path) return &file;
    return nullptr;
  }
  static bool IsKnown(std::string_view path) {
    return path == "/metrics" || path == "/api/state" || path == "/api/updates" || path == "/api/events";
  }
  [[nodiscard]] bool MayRead(const Request& request) const {
    if (!token_) return IsLoopbackName(request.host);
    const bool bearer = request.authorization.starts_with(kBearer);
    const stream::Secret given(bearer ? request.authorization.substr(kBearer.size())
                                      : http::QueryValue(request.query, "token"));
    return given == *token_;
  }
  [[nodiscard]] Response Refusal() const {
    if (!token_) return http::PlainResponse(421, "this address is for this host alone; ask it as localhost");
    Response response = http::PlainResponse(
        401,
        "give the token of `weightcast token --role observer`, as 'Authorization: Bearer TOKEN' or ?token=");
    response.headers.emplace_back("WWW-Authenticate", "Bearer");
    return response;
  }
  [[nodiscard]] Response Health() const {
    const Duration silent = texts_->SinceShown();
    if (silent <= kSilent) return http::PlainResponse(200, "ok");
    return http::PlainResponse(503, StrCat("the controller's thread has been busy for ", Seconds(silent),
                                           " s; see its log, and the load of its host"));
  }
  [[nodiscard]] Response Updates() const {
    texts_->LookForUpdates();
    std::map<uint64_t, std::string_view> by_number;
    for (const auto& update : texts_->updates()) by_number[update.number] = update.json();
    std::string text = R"({"updates":[)";
    for (const auto& [number, json] : by_number) {
      if (text.back() != '[') text += ',';
      text += json;
    }
    return JsonResponse(text + "]}");
  }

  const std::shared_ptr<Texts> texts_;
  const std::optional<stream::Secret> token_;
};

class Page final : public PageServer {
 public:
  explicit Page(std::shared_ptr<PageState> state) : state_(std::move(state)) {}
  Status Begin(http::Place place, std::optional<stream::Secret> token) {
    auto routes = std::make_shared<const Routes>(state_, std::move(token));
    WC_ASSIGN_OR_RETURN(
        server_, http::Server::Start({.place = std::move(place),
                                      .thread_name = "wc-http",
                                      .answer_to = [routes](const Request& one) { return (*routes)(one); }}));
    state_->OnChange([server = server_.get()] { server->Wake(); });
    return Status::Ok();
  }
  ~Page() override { state_->OnChange(nullptr); }
  [[nodiscard]] std::string address() const override { return server_->address().ToString(); }

 private:
  const std::shared_ptr<PageState> state_;
  std::unique_ptr<http::Server> server_;
};

}  // namespace

Result<std::unique_ptr<PageServer>> PageServer::Start(const std::string& where, const Token& token,
                                                      std::shared_ptr<PageState> state) {
  WC_ASSIGN_OR_RETURN(http::Place place, http::Place::Parse(where, "--http", 8080));
  WC_ASSIGN_OR_RETURN(const bool loopback, place.IsLoopback());
  std::optional<stream::Secret> wanted;
  if (!loopback) {
    if (!token.configured())
      return Error(Code::kPermission, "without a job token option http listens on loopback only, not on ",
                   place.host,
                   "; set WEIGHTCAST_TOKEN or setting token_file, and give clients the observer's token");
    WC_ASSIGN_OR_RETURN(const stream::RoleToken observer, token.ForObserver());
    wanted = observer.Print();
  }
  auto page = std::make_unique<Page>(std::move(state));
  WC_RETURN_IF_ERROR(page->Begin(std::move(place), std::move(wanted)));
  WC_LOG(kInfo, "page at http://", page->address(), "/",
         loopback ? "" : "; it asks for the token of `weightcast token --role observer`");
  return std::unique_ptr<PageServer>(std::move(page));
}

}  // namespace weightcast::control
