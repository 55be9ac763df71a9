#include "soak/cluster.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <new>
#include <stdexcept>
#include <thread>
#include <utility>

#include "base/strings.h"

namespace weightcast::soak {
namespace {

constexpr const char* kMark = "--soak-role";

Board* MapBoard(const std::string& file) {
  const int fd = ::open(file.c_str(), O_RDWR | O_CLOEXEC);
  void* memory = ::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  ::close(fd);
  if (memory == MAP_FAILED) throw std::runtime_error("cannot map the board");
  return static_cast<Board*>(memory);
}

}  // namespace

std::optional<int> RunIfStartedByCluster(int argc, char** argv) {
  if (argc < 8 || std::string(argv[1]) != kMark) return std::nullopt;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  Setup setup{.controller = argv[4],
              .settings = {},
              .landing = static_cast<LandingMode>(std::stoi(argv[5])),
              .holding = static_cast<Holding>(std::stoi(argv[6])),
              .where = static_cast<Where>(std::stoi(argv[7]))};
  for (int i = 8; i + 1 < argc; i += 2) setup.settings[argv[i]] = argv[i + 1];
  return RunRole(*MapBoard(argv[2]), std::stoul(argv[3]), setup);
}

Cluster::Cluster(int number, Setup setup, std::unique_ptr<Network> network)
    : setup_(std::move(setup)), network_(std::move(network)) {
  std::string name = StrCat("/tmp/wc_soak_", number, "_XXXXXX");
  const int fd = ::mkstemp(name.data());
  if (fd < 0 || ::ftruncate(fd, sizeof(Board)) != 0) throw std::runtime_error("cannot make the board");
  ::close(fd);
  file_ = name;
  board_ = new (MapBoard(file_)) Board();
  if (setup_.where != Where::kHost) machine_ = std::make_unique<Machine>(setup_.seed, setup_.delay_us);
  for (size_t i = 0; i < kProcesses; ++i) Start(i);
}

Cluster::~Cluster() {
  board_->stop = true;
  for (Process& process : processes_) process.child.Kill();
  ::munmap(board_, sizeof(Board));
  ::unlink(file_.c_str());
  if (!keep_log_) ::unlink(StrCat(file_, ".log").c_str());
}

void Cluster::Start(size_t index) {
  std::vector<std::string> words;
  if (machine_ != nullptr)
    words = {"/usr/bin/env", "WEIGHTCAST_CUDA_LIBRARY=" FAKE_CUDA_LIBRARY, machine_->Environment()};
  if (network_ != nullptr)
    words.insert(words.end(), {"/usr/bin/env", "ip", "netns", "exec", network_->NamespaceOf(index)});
  words.insert(words.end(), {test::Process::Self(), kMark, file_, std::to_string(index), setup_.controller,
                             std::to_string(static_cast<int>(setup_.landing)),
                             std::to_string(static_cast<int>(setup_.holding)),
                             std::to_string(static_cast<int>(setup_.where))});
  auto settings = setup_.settings;
  if (network_ != nullptr) settings["bind"] = network_->AddressOf(index);
  for (const auto& [name, value] : settings) words.insert(words.end(), {name, value});
  Process& process = processes_[index];
  board_->process[index].stage = Stage::kStarting;
  board_->process[index].order = Order::kNone;
  board_->process[index].blocked = 0;
  process.child = test::Process::Start(std::move(words), {}, StrCat(file_, ".log"));
  process.stopped = false;
  ++process.starts;
}

void Cluster::Kill(size_t index) { processes_[index].child.Signal(SIGKILL); }

void Cluster::Retire(size_t index) {
  processes_[index].retired = true;
  Kill(index);
}

void Cluster::Reinstate(size_t index) { processes_[index].retired = false; }

void Cluster::Stop(size_t index) {
  processes_[index].child.Signal(SIGSTOP);
  processes_[index].stopped = true;
}

void Cluster::Continue(size_t index) {
  processes_[index].child.Signal(SIGCONT);
  processes_[index].stopped = false;
}

void Cluster::Look() {
  for (size_t i = 0; i < kProcesses; ++i)
    if (!processes_[i].retired && processes_[i].child.Code()) Start(i);
  const auto& trainers = board_->process;
  const int64_t number = board_->publish;
  if (trainers[kFirstTrainer].finished >= number && trainers[kFirstTrainer + 1].finished >= number)
    board_->publish = number + 1;
}

bool Cluster::WaitUntil(const std::function<bool()>& done, double seconds) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (true) {
    Look();
    if (done()) return true;
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(300));
  }
}

std::string Cluster::End() {
  board_->stop = true;
  std::string wrong;
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  for (size_t i = 0; i < kProcesses; ++i) {
    if (!processes_[i].child.Wait(limit - std::chrono::steady_clock::now()))
      wrong += StrCat(kPlaces[i].text, " does not end\n");
    processes_[i].child.Kill();
    if (const uint64_t left = board_->process[i].left; left != 0)
      wrong += StrCat(kPlaces[i].text, " has left ", left, " objects of the driver's\n");
  }
  if (machine_ != nullptr && !machine_->EndsEmpty()) wrong += "the machine of the devices does not end\n";
  return wrong.empty() ? wrong : wrong + Describe();
}

std::string Cluster::Describe() const {
  std::string text =
      StrCat("landing ", kLandingNames[static_cast<size_t>(setup_.landing)], ", ",
             kHoldingNames[static_cast<size_t>(setup_.holding)], ", weights in ",
             kWhereNames[static_cast<size_t>(setup_.where)], " memory", network_ ? ", network" : "");
  for (const auto& [name, value] : setup_.settings) text += StrCat(", ", name, " ", value);
  text += StrCat("; number ", board_->publish.load(), "\n");
  for (size_t i = 0; i < kProcesses; ++i) {
    const Board::Process& process = board_->process[i];
    text += StrCat("  ", kPlaces[i].text, ": ", kStageNames[static_cast<size_t>(process.stage.load())],
                   ", started ", processes_[i].starts, " times, ");
    text += i < kFirstRank
                ? StrCat("finished ", process.finished.load(), ", committed ", process.committed.load())
                : StrCat("serves ", process.run.load(), ":", process.served.load());
    text += StrCat(", ", process.comparisons.load(), " comparisons, ", process.mixtures.load(), " mixtures");
    for (uint32_t n = process.errors > 3 ? process.errors - 3 : 0; n < process.errors; ++n)
      text += StrCat("\n    ", process.error[n % process.error.size()].data());
    text += "\n";
  }
  return text + StrCat("  log: ", file_, ".log\n");
}

}  // namespace weightcast::soak
