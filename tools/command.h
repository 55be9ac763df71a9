#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "weightcast/settings.h"
#include "weightcast/status.h"

namespace weightcast::tools {

/// The flags of one subcommand. What is added keeps a reference to the variable: its value at that
/// time is the default that --help shows.
class Flags {
 public:
  virtual ~Flags() = default;
  /// `name`: "--output"; `type`: what --help shows, "DIR".
  virtual void Add(std::string_view name, std::string& value, std::string_view type,
                   std::string_view help) = 0;
  virtual void Add(std::string_view name, int64_t& value, int64_t least, int64_t most,
                   std::string_view help) = 0;
  virtual void Add(std::string_view name, bool& value, std::string_view help) = 0;
  virtual void AddChoice(std::string_view name, std::string& value, const std::vector<std::string>& allowed,
                         std::string_view help) = 0;
  /// Comma-separated.
  virtual void AddList(std::string_view name, std::vector<std::string>& value, std::string_view type,
                       std::string_view help) = 0;
  /// The words of another program's command line: those behind the flag up to the next flag, and those behind
  /// "--".
  virtual void AddProgram(std::string_view name, std::vector<std::string>& words, std::string_view help) = 0;
  /// Without this flag the command line is refused.
  virtual void Require(std::string_view name) = 0;
};

/// What every subcommand gets.
struct Context {
  bool json = false;                             ///< Print one JSON object and nothing else.
  Settings settings;                             ///< Defaults, environment, flags.
  std::map<std::string, std::string> overrides;  ///< The settings that were given as flags.
};

/// What --help says of a subcommand.
struct About {
  std::string_view name;     ///< "demo", "bench p2p".
  std::string_view summary;  ///< One line for the list of subcommands.
  std::string_view example;  ///< One or more command lines, indented, each with a word on what it does.
  bool hidden = false;       ///< Not listed: for other subcommands, or for those who change weightcast.
};

/// One subcommand of the binary.
class Command {
 public:
  explicit Command(const About& about) : about(about) {}
  virtual ~Command() = default;
  const About about;
  virtual void Declare(Flags& flags) = 0;
  /// Prints its results to standard output; the caller prints the error.
  virtual Status Run(const Context& context) = 0;
  /// The process' exit code where Run was ok: not 0 only for who runs another program.
  [[nodiscard]] virtual int exit_code() const { return 0; }
};

std::unique_ptr<Command> MakePlanCommand();
std::unique_ptr<Command> MakeInfoCommand();
std::unique_ptr<Command> MakeDoctorCommand();
std::unique_ptr<Command> MakeExplainCommand();
std::unique_ptr<Command> MakeWatchCommand();
std::unique_ptr<Command> MakeTokenCommand();
std::unique_ptr<Command> MakeControllerCommand();
std::unique_ptr<Command> MakeTrainerCommand();
std::unique_ptr<Command> MakeInferenceCommand();
std::unique_ptr<Command> MakeDemoCommand();
std::unique_ptr<Command> MakeDemoWorkerCommand();
std::unique_ptr<Command> MakeBenchP2pCommand();
std::unique_ptr<Command> MakeBenchFloorCommand();
std::unique_ptr<Command> MakeBenchUpdateCommand();
std::unique_ptr<Command> MakeBenchPlanCommand();
std::unique_ptr<Command> MakeBenchConnectCommand();
std::unique_ptr<Command> MakeBenchRegisterCommand();

/// In the order in which --help lists them.
std::vector<std::unique_ptr<Command>> AllCommands();

}  // namespace weightcast::tools
