#include "base/process.h"
#include "tools/cli.h"

namespace weightcast::tools {

std::vector<std::unique_ptr<Command>> AllCommands() {
  std::vector<std::unique_ptr<Command>> all;
  all.push_back(MakeDemoCommand());
  all.push_back(MakeControllerCommand());
  all.push_back(MakeTrainerCommand());
  all.push_back(MakeInferenceCommand());
  all.push_back(MakePlanCommand());
  all.push_back(MakeInfoCommand());
  all.push_back(MakeDoctorCommand());
  all.push_back(MakeExplainCommand());
  all.push_back(MakeWatchCommand());
  all.push_back(MakeTokenCommand());
  all.push_back(MakeBenchP2pCommand());
  all.push_back(MakeBenchFloorCommand());
  all.push_back(MakeBenchUpdateCommand());
  all.push_back(MakeBenchPlanCommand());
  all.push_back(MakeBenchConnectCommand());
  all.push_back(MakeBenchRegisterCommand());
  all.push_back(MakeDemoWorkerCommand());
  return all;
}

}  // namespace weightcast::tools

int main(int argc, char** argv) {
  weightcast::RaiseDescriptorLimit();
  return weightcast::tools::RunCommandLine(weightcast::tools::AllCommands(), argc, argv);
}
