#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "doctor/facts.h"
#include "doctor/finding.h"

namespace weightcast::doctor {

/// Pure functions: the same facts give the same findings. One for each group, which has begun.
void CheckHost(const Facts& facts, Findings& findings);
void CheckLimits(const Facts& facts, Findings& findings);
void CheckModules(const Facts& facts, Findings& findings);
void CheckRdma(const Facts& facts, Findings& findings);
void CheckQos(const Facts& facts, Findings& findings);
void CheckPcie(const Facts& facts, Findings& findings);
void CheckNuma(const Facts& facts, Findings& findings);
void CheckCpu(const Facts& facts, Findings& findings);
void CheckGpu(const Facts& facts, Findings& findings);
/// All of them, and a WARN for each probe that gave no facts; sorted as a person reads them.
std::vector<Finding> CheckAll(const Facts& facts);

// --- What several checks ask of the facts
/// The value of a weightcast setting; empty: its default.
std::string Setting(const Facts& facts, const std::string& name);
/// Of the setting traffic_class; nullopt: none is set.
std::optional<uint8_t> TrafficClass(const Facts& facts);
std::string Variable(const Facts& facts, const std::string& name);
/// The setting `transport` leaves `name` in.
bool MayUse(const Facts& facts, std::string_view name);
/// The setting `nics` leaves this port in.
bool IsWanted(const Facts& facts, const RdmaPort& port);
/// The interface that reaches other hosts: that of the route to the controller, of the default route, or the
/// first that is up and has an address. Empty: none.
std::string MainInterface(const Facts& facts);
bool IsLoopback(std::string_view address);
bool HasCapability(const Facts& facts, int number);

enum class GidKind { kRoceV1, kLinkLocal, kIpv6, kIpv4 };
GidKind KindOf(const GidEntry& entry);
/// The entry that weightcast would use of an Ethernet port; null: there is no RoCE v2.
const GidEntry* BestGid(const RdmaPort& port);
/// It can carry data now.
bool IsUsable(const RdmaPort& port);

}  // namespace weightcast::doctor
