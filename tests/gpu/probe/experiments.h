#pragma once

#include <string>
#include <vector>

/// The experiments of docs/performance.md, "GPU: predicted". Each prints one report, and is to run in a
/// process of its own, which then ends: it gives nothing back.
namespace probe {

void SeveralSources();   ///< E2, copies.cc
void ManyTensors();      ///< E4, copies.cc
void SmallWrites();      ///< E6, small_writes.cc
void FlagsBehindData();  ///< E7, flags.cc
void MappingCosts();     ///< E8, sharing.cc
void LostExporters();    ///< E9, lost_exporters.cc
void KilledWriters();    ///< E10, killed_writers.cc
void ReadOnlyMapping();  ///< E11, sharing.cc
void BlockedCalls();     ///< E12, blocked_calls.cc
void FabricHandles();    ///< E13, sharing.cc

// What their child processes do; `arguments` as the experiment gave them.
void RunImporter(const std::vector<std::string>& arguments);  ///< E9
void RunWriter(const std::vector<std::string>& arguments);    ///< E10

}  // namespace probe
