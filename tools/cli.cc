#include "tools/cli.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <optional>
#include <span>
#include <utility>

#include "base/log.h"
#include "base/out_of_memory.h"
#include "base/strings.h"
#include "tools/common/output.h"
#include "tools/common/stop.h"
#include "weightcast/version.h"

namespace weightcast::tools {
namespace {

constexpr int kWrongCommandLine = 2;

class CliFlags : public Flags {
 public:
  explicit CliFlags(CLI::App& app) : app_(app) {}
  /// Where the words behind "--" go; null: nowhere.
  [[nodiscard]] std::vector<std::string>* program() const { return program_; }

  void Add(std::string_view name, std::string& value, std::string_view type, std::string_view help) override {
    CLI::Option* option = app_.add_option(std::string(name), value, std::string(help));
    option->type_name(std::string(type));
    if (!value.empty()) option->default_str(value);
  }
  void Add(std::string_view name, int64_t& value, int64_t least, int64_t most,
           std::string_view help) override {
    CLI::Option* option = app_.add_option(std::string(name), value, std::string(help));
    option->type_name("N")->default_str(StrCat(value));
    option->check([least, most](const std::string& text) {
      const auto number = ParseNumber<int64_t>(text);
      if (number && *number >= least && *number <= most) return std::string();
      return StrCat("'", text, "' must be an integer in [", least, ", ", most, "]");
    });
  }
  void Add(std::string_view name, bool& value, std::string_view help) override {
    app_.add_flag(std::string(name), value, std::string(help));
  }
  void AddChoice(std::string_view name, std::string& value, const std::vector<std::string>& allowed,
                 std::string_view help) override {
    CLI::Option* option = app_.add_option(std::string(name), value, std::string(help));
    const std::string list = Join(allowed, "|");
    option->type_name(list)->default_str(value);
    option->check([allowed, list](const std::string& text) {
      if (std::find(allowed.begin(), allowed.end(), text) != allowed.end()) return std::string();
      return StrCat("'", text, "' must be one of ", list);
    });
  }
  void AddList(std::string_view name, std::vector<std::string>& value, std::string_view type,
               std::string_view help) override {
    CLI::Option* option = app_.add_option(std::string(name), value, std::string(help));
    option->type_name(std::string(type))->delimiter(',');
    option->allow_extra_args(false);
    if (!value.empty()) option->default_str(Join(value, ","));
  }
  void AddProgram(std::string_view name, std::vector<std::string>& words, std::string_view help) override {
    // CLI11 gives it those up to the next flag; what stands behind "--" is kept from it.
    app_.add_option(std::string(name), words, std::string(help))
        ->type_name("CMD")
        ->expected(0, CLI::detail::expected_max_vector_size);
    program_ = &words;
  }
  void Require(std::string_view name) override { app_.get_option(std::string(name))->required(); }

 private:
  CLI::App& app_;
  std::vector<std::string>* program_ = nullptr;
};

std::string FlagOf(std::string_view setting) {
  std::string flag = "--" + std::string(setting);
  std::replace(flag.begin(), flag.end(), '_', '-');
  return flag;
}

/// A subcommand as the parser knows it, and where its settings go.
struct Parsed {
  Command* command = nullptr;
  CLI::App* app = nullptr;
  bool json = false;
  std::vector<std::string>* program = nullptr;  ///< See CliFlags::program.
  std::map<std::string, std::optional<std::string>> settings;
};

/// "bench p2p" is `p2p` below `bench`, which is made when the first of them comes.
CLI::App& MakeApp(CLI::App& root, const Command& command) {
  const std::string_view name = command.about.name;
  const size_t space = name.find(' ');
  if (space == std::string_view::npos)
    return *root.add_subcommand(std::string(name), std::string(command.about.summary));
  const std::string group(name.substr(0, space));
  const auto made = root.get_subcommands([&group](CLI::App* app) { return app->get_name() == group; });
  CLI::App* parent =
      made.empty() ? root.add_subcommand(group, "Measures: see `weightcast bench --help`") : made.front();
  parent->require_subcommand(1);
  return *parent->add_subcommand(std::string(name.substr(space + 1)), std::string(command.about.summary));
}

void Declare(Parsed& parsed, CLI::App& root) {
  Command& command = *parsed.command;
  CLI::App& app = MakeApp(root, command);
  parsed.app = &app;
  if (command.about.hidden) app.group("");
  app.footer(StrCat("Example:\n", command.about.example, "\nSettings are also read from WEIGHTCAST_<NAME>."));
  CliFlags flags(app);
  command.Declare(flags);
  parsed.program = flags.program();
  app.add_flag("--json", parsed.json, "One JSON object on standard output and nothing else there");
  for (const SettingInfo& info : SettingsTable()) {
    const std::string flag = FlagOf(info.name);
    if (app.get_option_no_throw(flag) != nullptr) continue;
    std::optional<std::string>& value = parsed.settings[std::string(info.name)];
    CLI::Option* option =
        app.add_option_function<std::string>(flag, [&value](const std::string& text) { value = text; });
    option->description(std::string(info.meaning))->type_name(std::string(info.unit))->group("Settings");
    if (!info.default_value.empty()) option->default_str(std::string(info.default_value));
  }
}

Status Execute(Parsed& parsed) {
  Context context{.json = parsed.json, .settings = {}, .overrides = {}};
  for (auto& [name, value] : parsed.settings)
    if (value) context.overrides.emplace(name, *value);
  WC_ASSIGN_OR_RETURN(context.settings, Settings::From(context.overrides));
  SetLogLevel(LogLevelFromName(context.settings.log_level).value_or(LogLevel::kWarning));
  Status status = parsed.command->Run(context);
  // Whatever a stop signal made fail, the signal is the reason.
  return status.ok() || CheckStop().ok() ? status : CheckStop();
}

int Finish(const Status& status) {
  if (status.ok()) return 0;
  PrintError(status.message().empty() ? status.ToString() : status.message());
  return StopSignal() != 0 ? 128 + StopSignal() : 1;
}

/// --help and --version end the parsing as errors of their own kind.
int FinishParse(const CLI::ParseError& error, const CLI::App& root) {
  const CLI::App* app = &root;
  std::string above;  // The names before the last one.
  std::string path = root.get_name();
  while (!app->get_subcommands().empty()) {
    app = app->get_subcommands().front();
    above = std::exchange(path, StrCat(path, " ", app->get_name()));
  }
  if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::Success)) {
    const bool version = dynamic_cast<const CLI::CallForVersion*>(&error) != nullptr;
    return Finish(Print(version ? StrCat("weightcast ", LibraryVersion(), "\n") : app->help(above)));
  }
  PrintError(StrCat(error.what(), "; see `", path, " --help`"));
  return kWrongCommandLine;
}

/// `rest`: "--" and what stands behind it, or nothing. False: the subcommand takes no such thing.
bool AddProgram(const Parsed& parsed, std::span<const char* const> rest) {
  if (parsed.program == nullptr) return rest.empty();
  std::erase(*parsed.program, "");  // CLI11's for a flag without words.
  if (!rest.empty()) parsed.program->insert(parsed.program->end(), rest.begin() + 1, rest.end());
  return true;
}

int ParseAndExecute(const std::vector<std::unique_ptr<Command>>& commands, int argc,
                    const char* const* argv) {
  CLI::App root("Moves new weights from trainers into inference engines, bit-exact.", "weightcast");
  root.require_subcommand(1);
  root.set_version_flag("--version", LibraryVersion());
  root.footer("Begin with:\n  weightcast demo            all of it on this machine, nothing to configure");
  std::vector<Parsed> all(commands.size());
  for (size_t i = 0; i < commands.size(); ++i) {
    all[i].command = commands[i].get();
    Declare(all[i], root);
  }
  const auto dashes = std::find(argv, argv + argc, std::string_view("--"));
  try {
    root.parse(static_cast<int>(dashes - argv), argv);
  } catch (const CLI::ParseError& error) {
    return FinishParse(error, root);
  }
  const auto chosen = std::ranges::find_if(all, [](const Parsed& one) { return one.app->parsed(); });
  if (!AddProgram(*chosen, {dashes, argv + argc})) {
    PrintError("The following argument was not expected: --; see `weightcast --help`");
    return kWrongCommandLine;
  }
  InstallStopSignals();
  const Status status = Execute(*chosen);
  return status.ok() ? chosen->command->exit_code() : Finish(status);
}

}  // namespace

int RunCommandLine(const std::vector<std::unique_ptr<Command>>& commands, int argc, const char* const* argv) {
  const auto run = [&]() -> Result<int> { return ParseAndExecute(commands, argc, argv); };
  const Result<int> code = OrOutOfMemory("this process", "the command", run);
  return code.ok() ? *code : Finish(code.status());
}

}  // namespace weightcast::tools
