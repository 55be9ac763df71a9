#pragma once

#include <map>
#include <string>

#include "doctor/facts.h"
#include "doctor/sources.h"

namespace weightcast::doctor {

/// Each reads what its facts need. None fails: what cannot be read stays empty. Those with a driver or a
/// resolver behind them may block; Gather() gives each a process and a time limit.
HostFacts GatherHost(const Sources& sources);
NameFacts GatherNames(const Sources& sources);
RouteFacts GatherRoute(const Sources& sources);
ClockFacts GatherClock(const Sources& sources);
LimitFacts GatherLimits(const Sources& sources);
ModuleFacts GatherModules(const Sources& sources);
RdmaFacts GatherRdma(const Sources& sources);
VerbsFacts GatherVerbs(const Sources& sources);
QosFacts GatherQos(const Sources& sources);
PcieFacts GatherPcie(const Sources& sources);
CpuFacts GatherCpu(const Sources& sources);
GpuFacts GatherGpu(const Sources& sources);
CudaFacts GatherCuda(const Sources& sources);

/// The variables of this field, without secrets.
std::map<std::string, std::string> GatherEnvironment(const Sources& sources);
std::map<std::string, std::string> GatherSettings(const Sources& sources);

/// All of the above, side by side in children with a time limit each. Call it while single-threaded.
Facts Gather(const Sources& sources);

}  // namespace weightcast::doctor
