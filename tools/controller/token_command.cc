#include "base/strings.h"
#include "control/token.h"
#include "tools/command.h"
#include "tools/common/json.h"
#include "tools/common/output.h"

namespace weightcast::tools {
namespace {

class TokenCommand : public Command {
 public:
  TokenCommand()
      : Command(
            {.name = "token",
             .summary = "Makes the token of one role from the job's master token",
             .example =
                 R"(  weightcast token --role observer --token-file ~/job.token              may only watch
  weightcast token --role inference --engine a --token-file ~/job.token  ranks of engine a
)"}) {}
  void Declare(Flags& flags) override {
    flags.AddChoice("--role", role_, {"trainer", "inference", "observer", "peer"},
                    "What the process may be: docs/streams.md");
    flags.Require("--role");
    flags.Add("--engine", engine_, "NAME", "With --role inference: of this engine alone");
  }
  Status Run(const Context& context) override {
    WC_ASSIGN_OR_RETURN(const control::Token token, control::LoadToken(context.settings));
    WC_ASSIGN_OR_RETURN(const stream::MasterToken master, token.Master());
    stream::Member member = *stream::ParseMember(role_);
    member.engine = engine_;
    WC_ASSIGN_OR_RETURN(const stream::RoleToken made, stream::RoleToken::Derive(master, member));
    const std::string text(made.Print().bytes());
    return Print(context.json ? JsonLine({{"role", stream::MemberText(member)}, {"token", text}})
                              : StrCat(text, "\n"));
  }

 private:
  std::string role_;
  std::string engine_;
};

}  // namespace

std::unique_ptr<Command> MakeTokenCommand() { return std::make_unique<TokenCommand>(); }

}  // namespace weightcast::tools
