// E9: whether a process goes on reading memory whose exporter is killed or frees it.
#include <map>
#include <memory>
#include <optional>

#include "gpu/probe/experiments.h"
#include "gpu/probe/exporter.h"
#include "gpu/probe/report.h"

namespace probe {

using namespace weightcast::drivers;  // NOLINT

namespace {

constexpr uint64_t kExportedSeed = 0xE9;
constexpr uint64_t kOtherSeed = 0xE9000;

/// To the reading process: the others are over.
struct ReadersTurn {};

/// What the reading process saw.
struct Outcome {
  uint64_t before = 0;       ///< Reads, each of all bytes.
  uint64_t after = 0;        ///< Those after the exporter's end, or after it has freed.
  CUresult error = 0;        ///< Of the first read that failed.
  uint64_t differences = 0;  ///< Words of the last read that are not what was exported.
  uint64_t reused = 0;       ///< The same once the exporter has allocated again and written other bytes.
  CUresult unmapped = 0;
  bool exporter_ended = false;  ///< While it freed.
};

/// Copies out of memory of another process.
class Reader {
 public:
  Reader(Device& device, CUdeviceptr from, uint64_t bytes)
      : device_(device), from_(from), bytes_(bytes), to_(Device::Allocate(bytes)) {}

  CUresult Begin() { return Driver().MemcpyAsync(to_, from_, bytes_, device_.stream()); }
  CUresult Read() {
    const CUresult begun = Begin();
    return begun != CUDA_SUCCESS ? begun : device_.TryWait(device_.stream());
  }
  /// Reads again and again; how often. The first error ends it.
  uint64_t ReadFor(double seconds, CUresult& error) {
    uint64_t reads = 0;
    for (const auto begin = Clock::now(); SecondsSince(begin) < seconds && error == CUDA_SUCCESS;) {
      error = Read();
      reads += error == CUDA_SUCCESS ? 1 : 0;
    }
    return reads;
  }
  uint64_t Differences() { return device_.Differences(to_, bytes_, kExportedSeed); }

 private:
  Device& device_;
  const CUdeviceptr from_;
  const uint64_t bytes_;
  const CUdeviceptr to_;
};

std::string Describe(const Outcome& outcome) {
  std::string text = std::to_string(outcome.after) + " reads after it";
  text += outcome.error == CUDA_SUCCESS ? "" : ", then " + Words(outcome.error);
  if (outcome.differences != 0) text += ", other bytes";
  if (outcome.reused != 0) text += ", other bytes once the exporter had allocated again";
  if (outcome.exporter_ended) text += ", the exporter ended as it freed";
  if (outcome.unmapped != CUDA_SUCCESS) text += ", unmapping: " + Words(outcome.unmapped);
  return text;
}

}  // namespace

void RunImporter(const std::vector<std::string>& arguments) {
  const bool pages = arguments.at(0) == "pages";
  const bool kill = arguments.at(1) == "killed";
  const uint64_t bytes = Scaled(64, 4) * kMiB;
  Exporter exporter(PeerDevice());
  Device device(0);
  const Current current(device);
  std::optional<ImportedPages> imported;
  CUdeviceptr mapped = 0;
  if (pages) {
    exporter.Create(bytes / kPage, kExportedSeed);
    imported.emplace(device, bytes / kPage);
    imported->Map(exporter.TakePages());
    Check(imported->Allow(CU_MEM_ACCESS_FLAGS_PROT_READWRITE), "cuMemSetAccess");
    mapped = imported->address();
  } else {
    mapped = OpenLegacy(exporter.Allocate(bytes, kExportedSeed));
  }
  Reader reader(device, mapped, bytes);
  Outcome outcome;
  (void)Parent().Receive<ReadersTurn>();
  outcome.before = reader.ReadFor(0.1, outcome.error);
  Check(outcome.error, "a read before anything happened");
  if (reader.Differences() != 0) Fail("other bytes were read than were exported");
  for (int i = 0; i < 16; ++i) Check(reader.Begin(), "cuMemcpyAsync");  // Amid these.
  if (kill)
    exporter.Kill();
  else
    outcome.exporter_ended = !exporter.Free();
  outcome.after = reader.ReadFor(0.3, outcome.error);
  if (outcome.error == CUDA_SUCCESS) outcome.differences = reader.Differences();
  if (outcome.error == CUDA_SUCCESS && !kill && !outcome.exporter_ended) {
    (void)exporter.Allocate(bytes, kOtherSeed);
    outcome.error = reader.Read();
    if (outcome.error == CUDA_SUCCESS) outcome.reused = reader.Differences();
  }
  outcome.unmapped = pages ? imported->Unmap() : Driver().IpcCloseMemHandle(mapped);
  Parent().Send(outcome);
}

void LostExporters() {
  bool all_go_on = true;
  std::string measured;
  std::string note;
  Report report{.experiment = "E9: reads of memory whose exporter is killed, or frees it",
                .predicted = "go on, no error",
                .unit = ""};
  // All start up at once; then each has its turn, so that no other can be to blame.
  std::map<std::pair<std::string, std::string>, std::unique_ptr<Peer>> importers;
  for (const std::string how : {"legacy", "pages"})
    for (const std::string end : {"killed", "freed"})
      importers[{how, end}] = std::make_unique<Peer>(std::vector<std::string>{"importer", how, end});
  for (const auto& [name_of, importer] : importers) {
    const auto& [how, end] = name_of;
    importer->channel().Send(ReadersTurn{});
    const auto outcome = importer->channel().TryReceive<Outcome>(kPatience);
    const bool goes_on =
        outcome && outcome->after > 0 && outcome->error == CUDA_SUCCESS && outcome->differences == 0;
    all_go_on &= goes_on;
    const std::string name = how + ", " + end;
    if (!goes_on) measured += (measured.empty() ? "not: " : "; ") + name;
    note += (note.empty() ? "" : "; ") + name + ": " +
            (outcome ? Describe(*outcome) : "the reading process ended, or did not answer");
    report.figures.emplace_back(how + "_" + end + "_reads",
                                outcome ? static_cast<double>(outcome->after) : -1);
    importer->Kill();
  }
  report.measured = all_go_on ? "go on, no error" : measured;
  report.verdict = VerdictIf(all_go_on);
  report.note = Way() + "; " + note;
  Print(report);
}

}  // namespace probe
