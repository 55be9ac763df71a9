#include "base/process.h"
#include "tools/cli.h"

namespace weightcast::tools {

std::vector<std::unique_ptr<Command>> AllCommands() {
  std::vector<std::unique_ptr<Command>> all;
  for (const auto make :
       {MakeDemoCommand, MakeControllerCommand, MakeTrainerCommand, MakeInferenceCommand, MakePlanCommand,
        MakeInfoCommand, MakeDoctorCommand, MakeExplainCommand, MakeWatchCommand, MakeTokenCommand,
        MakeBenchP2pCommand, MakeBenchFloorCommand, MakeBenchUpdateCommand, MakeBenchPlanCommand,
        MakeBenchConnectCommand, MakeBenchRegisterCommand, MakeDemoWorkerCommand})
    all.push_back(make());
  return all;
}

}  // namespace weightcast::tools

int main(int argc, char** argv) {
  weightcast::RaiseDescriptorLimit();
  return weightcast::tools::RunCommandLine(weightcast::tools::AllCommands(), argc, argv);
}
