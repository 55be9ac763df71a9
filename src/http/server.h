#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/socket.h"
#include "http/place.h"
#include "weightcast/clock.h"
#include "weightcast/status.h"

/// A small HTTP server (docs/http.md). server.cc is the only file that includes Boost.Beast.
namespace weightcast::http {

/// Shared by all clients that get the same bytes.
using Text = std::shared_ptr<const std::string>;

/// A GET (or HEAD) whose head has arrived whole.
struct Request {
  std::string path;   ///< Without the query, as it came.
  std::string query;  ///< "token=x&y=z", as it came.
  std::string host;   ///< Headers, empty where the client sent none.
  std::string authorization;
  std::string last_event_id;
};
/// The first value of `name` in a query, percent-decoded; empty where there is none.
std::string QueryValue(std::string_view query, std::string_view name);

struct Response {
  unsigned status = 200;
  std::string type = "text/plain; charset=utf-8";
  Text body;
  std::vector<std::pair<std::string, std::string>> headers = {};
};
Response PlainResponse(unsigned status, std::string_view line);

/// One client's stream of server-sent events. It has no queue: it tells what comes next when the bytes before
/// are out, so a slow client skips what is no longer new. Exists and runs on the server's thread.
class Feed {
 public:
  virtual ~Feed() = default;
  /// Whole events in wire form; nullptr: nothing until the next Wake, or until `again` where this sets it.
  virtual Text Next(TimePoint now, TimePoint& again) = 0;
};
using Answer = std::variant<Response, std::unique_ptr<Feed>>;

/// One thread serves all connections, one request each. It never waits for a client.
class Server {
 public:
  struct Options {
    Place place = {};
    const char* thread_name = "";
    size_t most = 256;        ///< Connections at once; at most a quarter of the descriptors.
    size_t most_feeds = 200;  ///< Of these; more get 503.
    Duration request = std::chrono::seconds(5);  ///< For a client to send its request.
    Duration answer = std::chrono::seconds(10);  ///< A client that takes nothing for so long is ended.
    Duration beat = std::chrono::seconds(15);    ///< A silent feed sends a comment that often.
    std::function<Answer(const Request&)> answer_to = {};  ///< Runs on the server's thread; must not block.
  };
  static constexpr size_t kMostHeadBytes = size_t{16} << 10;

  /// Errors: as Place::Open; kExhausted where the system gives no thread.
  static Result<std::unique_ptr<Server>> Start(Options options);
  virtual ~Server() = default;  ///< Ends all connections and joins the thread.
  [[nodiscard]] virtual SocketAddress address() const = 0;
  /// Feeds have something new. Any thread; cheap while a wake-up is under way.
  virtual void Wake() = 0;
};

}  // namespace weightcast::http
