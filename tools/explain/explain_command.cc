#include "base/strings.h"
#include "control/client.h"
#include "tools/command.h"
#include "tools/common/files.h"
#include "tools/common/output.h"
#include "tools/explain/text.h"
#include "weightcast/clock.h"

namespace weightcast::tools {
namespace {

constexpr int64_t kMostUpdates = 200;  ///< A controller remembers no more.

class ExplainCommand : public Command {
 public:
  ExplainCommand()
      : Command(
            {.name = "explain",
             .summary = "Says why updates took as long as they did",
             .example =
                 R"(  weightcast explain --controller head:29750              the last update, step by step
  weightcast explain --last 20                            a line for each of the last 20
  weightcast explain --update 81 --trace update81.json    one version, for ui.perfetto.dev
)"}) {}
  void Declare(Flags& flags) override {
    flags.Add("--update", update_, 0, INT64_MAX, "Updates to the version of this number only");
    flags.Add("--last", last_, 1, kMostUpdates, "So many of each model, the newest");
    flags.Add("--of", model_, "MODEL", "Of this model only");
    flags.Add("--trace", trace_, "FILE", "Write them in Chrome's trace format, too; Perfetto opens it");
  }
  Status Run(const Context& context) override {
    const protocol::AskUpdates ask{.model = model_, .number = update_, .last = static_cast<uint32_t>(last_)};
    const TimePoint deadline = Clock::now() + context.settings.connect_timeout;
    WC_ASSIGN_OR_RETURN(const std::string json, control::GetUpdates(context.settings, ask, deadline));
    if (json == "[]") return Nothing();
    if (!trace_.empty()) {
      WC_ASSIGN_OR_RETURN(const std::string trace, ExplainTrace(json));
      WC_RETURN_IF_ERROR(WriteFileAtomically(trace_, trace));
    }
    if (context.json) return Print(StrCat("{\"updates\":", json, "}\n"));
    WC_ASSIGN_OR_RETURN(const std::string text, ExplainText(json));
    return Print(text);
  }

 private:
  [[nodiscard]] Status Nothing() const {
    const std::string which = update_ < 0 ? "" : StrCat(" to version ", update_);
    return Error(Code::kUnavailable, "the controller remembers no update", which,
                 model_.empty() ? "" : " of model " + model_, ": it keeps the last ", kMostUpdates,
                 " that have ended since it started; ",
                 update_ >= 0 ? "ask without --update for these" : "ask again when one has ended");
  }

  int64_t update_ = -1;
  int64_t last_ = 1;
  std::string model_;
  std::string trace_;
};

}  // namespace

std::unique_ptr<Command> MakeExplainCommand() { return std::make_unique<ExplainCommand>(); }

}  // namespace weightcast::tools
