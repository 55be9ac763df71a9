#include "soak/data_pair.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <new>
#include <stdexcept>
#include <thread>
#include <vector>

#include "base/strings.h"
#include "soak/data_role.h"

namespace weightcast::soak {
namespace {

constexpr const char* kMark = "--data-role";
constexpr std::array<const char*, 2> kNames = {"target", "source"};

DataBoard* MapBoard(const std::string& folder) {
  const int fd = ::open((folder + "/board").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0 || ::ftruncate(fd, sizeof(DataBoard)) != 0) throw std::runtime_error("cannot make the board");
  void* memory = ::mmap(nullptr, sizeof(DataBoard), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  ::close(fd);
  if (memory == MAP_FAILED) throw std::runtime_error("cannot map the board");
  return static_cast<DataBoard*>(memory);
}

}  // namespace

std::optional<int> RunIfStartedByPair(int argc, char** argv) {
  if (argc < 6 || std::string(argv[1]) != kMark) return std::nullopt;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  DataSetup setup{.folder = argv[2],
                  .pair = static_cast<uint32_t>(std::stoul(argv[4])),
                  .shared = std::string(argv[5]) == "shared",
                  .settings = {}};
  for (int i = 6; i + 1 < argc; i += 2) {
    if (!setup.settings.Set(argv[i], argv[i + 1]).ok()) return 2;
  }
  DataBoard& board = *MapBoard(setup.folder);
  return argv[3] == std::string(kNames[kTarget]) ? RunTarget(board, setup) : RunSource(board, setup);
}

DataPair::DataPair(uint32_t number, bool shared, std::map<std::string, std::string> settings,
                   std::unique_ptr<Network> network)
    : number_(number), shared_(shared), settings_(std::move(settings)), network_(std::move(network)) {
  std::string name = StrCat("/tmp/wc_data_", number, "_XXXXXX");
  if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot make a folder");
  folder_ = name;
  board_ = new (MapBoard(folder_)) DataBoard();
  for (const size_t role : {kTarget, kSource}) Start(role);
}

DataPair::~DataPair() {
  for (Process& process : processes_) process.child.Kill();
  ::munmap(board_, sizeof(DataBoard));
  for (const char* file : {"/board", "/address", "/address.new"}) ::unlink((folder_ + file).c_str());
  if (keep_log_) return;
  ::unlink((folder_ + "/log").c_str());
  ::rmdir(folder_.c_str());
}

void DataPair::Start(size_t role) {
  std::vector<std::string> words;
  if (network_ != nullptr) words = {"/usr/bin/env", "ip", "netns", "exec", network_->NamespaceOf(role)};
  words.insert(words.end(), {test::Process::Self(), kMark, folder_, kNames[role], std::to_string(number_),
                             shared_ ? "shared" : "private"});
  for (const auto& [name, value] : settings_) words.insert(words.end(), {name, value});
  words.insert(words.end(), {"bind", network_ != nullptr ? network_->AddressOf(role) : "127.0.0.1"});
  Process& process = processes_[role];
  process.child = test::Process::Start(std::move(words), {}, folder_ + "/log");
  process.killed = false;
  ++process.starts;
}

void DataPair::Kill(size_t role) {
  processes_[role].killed = true;
  processes_[role].child.Signal(SIGKILL);
}

void DataPair::Stop(size_t role) { processes_[role].child.Signal(SIGSTOP); }
void DataPair::Continue(size_t role) { processes_[role].child.Signal(SIGCONT); }

void DataPair::Look() {
  for (const size_t role : {kTarget, kSource}) {
    const std::optional<int> code = processes_[role].child.Code();
    if (!code) continue;
    if (!processes_[role].killed)
      board_->Violated(StrCat("the ", kNames[role], " ended by itself, exit code ", *code));
    Start(role);
  }
}

bool DataPair::WaitUntil(const std::function<bool()>& done, double seconds) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  while (board_->violations == 0) {
    Look();
    if (done()) return true;
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

bool DataPair::End(double seconds) {
  board_->stop = true;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  bool well = true;
  for (Process& process : processes_) {
    const std::optional<int> code = process.child.Wait(deadline - std::chrono::steady_clock::now());
    if (!code) return false;
    well = well && *code == 0;
  }
  return well;
}

std::string DataPair::Describe() const {
  std::string text = StrCat("pair ", number_, ", ", shared_ ? "shared" : "private", " memory",
                            network_ != nullptr ? ", network" : "");
  for (const auto& [name, value] : settings_) text += StrCat(", ", name, " ", value);
  for (const size_t role : {kTarget, kSource}) {
    text += StrCat("\n  ", kNames[role], ": started ", processes_[role].starts, " times, ",
                   board_->role[role].rounds.load(), " rounds over ", board_->role[role].connections.load(),
                   " connections");
  }
  return text + StrCat("\n  log: ", folder_, "/log\n");
}

}  // namespace weightcast::soak
