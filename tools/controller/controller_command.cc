#include <poll.h>

#include "base/log.h"
#include "base/strings.h"
#include "tools/command.h"
#include "tools/common/json.h"
#include "tools/common/output.h"
#include "tools/common/stop.h"
#include "weightcast/worker.h"

namespace weightcast::tools {
namespace {

class ControllerCommand : public Command {
 public:
  ControllerCommand()
      : Command(
            {.name = "controller",
             .summary = "Runs the process that plans; ends on SIGTERM or Ctrl-C",
             .example =
                 R"(  weightcast controller                                       this machine only, port 29750
  weightcast controller --listen 0.0.0.0:29750 --token-file ~/job.token
  weightcast controller --http 127.0.0.1:8080                  and a page that shows the job
)"}) {}
  void Declare(Flags& flags) override {
    flags.Add("--listen", listen_, "HOST:PORT",
              "Where to listen; port 0: any. Without it: the setting --controller. Other addresses than "
              "loopback need a token");
    flags.Add("--http", http_, "HOST:PORT",
              "Serve a live page of the job there, with its JSON and /metrics; port 0: any. Other addresses "
              "than loopback ask for the token of an observer (docs/http.md)");
  }
  Status Run(const Context& context) override {
    SetLogPrefix("controller");
    WC_ASSIGN_OR_RETURN(const auto controller,
                        Controller::Start({.listen = listen_, .settings = context.overrides, .http = http_}));
    const std::string address = controller->address();
    const std::string page = controller->http_address();
    Json json{{"address", address}};
    if (!page.empty()) json["http"] = page;
    const std::string page_line = page.empty() ? "" : StrCat("page at http://", page, "/\n");
    WC_RETURN_IF_ERROR(
        Print(context.json ? JsonLine(json) : StrCat("listening at ", address, "\n", page_line)));
    pollfd stop{StopDescriptor(), POLLIN, 0};
    while (StopSignal() == 0) poll(&stop, 1, -1);
    controller->Stop();
    return Status::Ok();
  }

 private:
  std::string listen_;
  std::string http_;
};

}  // namespace

std::unique_ptr<Command> MakeControllerCommand() { return std::make_unique<ControllerCommand>(); }

}  // namespace weightcast::tools
