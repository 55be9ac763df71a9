#include <dlfcn.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "fake_cuda/link.h"
#include "fake_cuda/socket.h"

extern char** environ;

namespace weightcast::fake_cuda {
namespace {

/// Held while a process joins, and while the GPU's process ends.
class FolderLock {
 public:
  explicit FolderLock(const std::string& dir) {
    const std::string path = dir + "/" + kLockName;
    struct stat mine{};
    struct stat there{};
    do {  // Whoever ended last has removed it in the meantime.
      if (fd_ >= 0) close(fd_);
      fd_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
      if (fd_ < 0) Wrong("FAKE_CUDA", path + " cannot be opened: " + std::strerror(errno));
      while (flock(fd_, LOCK_EX) != 0 && errno == EINTR) {
      }
      fstat(fd_, &mine);
    } while (stat(path.c_str(), &there) != 0 || mine.st_ino != there.st_ino);
  }
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;
  ~FolderLock() { close(fd_); }

 private:
  int fd_ = -1;
};

/// fake_gpu stands beside this library.
std::string Program() {
  Dl_info about{};
  dladdr(reinterpret_cast<void*>(&SocketLink), &about);
  const std::string library = about.dli_fname;
  return library.substr(0, library.rfind('/') + 1) + "fake_gpu";
}

/// Returns when the GPU listens: the process that was started has left it to a child.
void StartGpu(const Config& config) {
  const std::string program = Program();
  const std::string log = config.dir + "/" + kLogName;
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&files, 1, log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  posix_spawn_file_actions_adddup2(&files, 1, 2);
  std::string text = config.text;
  char* arguments[] = {const_cast<char*>(program.c_str()), text.data(), nullptr};
  pid_t pid = 0;
  const int error = posix_spawn(&pid, program.c_str(), &files, nullptr, arguments, environ);
  posix_spawn_file_actions_destroy(&files);
  if (error != 0) Wrong("cuInit", program + " cannot be started: " + std::strerror(error));
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (status != 0) Wrong("cuInit", program + " has failed; see " + log);
}

class Socket final : public Link {
 public:
  explicit Socket(const Config& config) : dir_(config.dir) {
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);  // The GPU reaches pinned memory, where Yama guards it.
    const FolderLock lock(dir_);
    socket_ = OpenSocket(dir_, false);
    if (socket_ < 0) {
      unlink((dir_ + "/" + kSocketName).c_str());
      StartGpu(config);
      socket_ = OpenSocket(dir_, false);
    }
    if (socket_ < 0) Wrong("cuInit", "the GPU's process in " + dir_ + " does not answer");
    Request hello{.kind = Ask::kHello};
    std::strncpy(hello.text, config.text.c_str(), sizeof hello.text - 1);
    int fd = -1;
    const Reply reply = Send(hello, &fd);
    if (reply.result != 0) Wrong("FAKE_CUDA", "the machine in " + dir_ + " was started with other settings");
    gpu_ = static_cast<int>(reply.a);
    void* const memory = mmap(nullptr, sizeof(Area), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) Wrong("cuInit", "the GPU's memory cannot be mapped");
    close(fd);
    area_ = static_cast<Area*>(memory);
  }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  ~Socket() override {
    Send({.kind = Ask::kLeave}, nullptr);
    munmap(area_, sizeof(Area));
    close(socket_);
  }

  Reply Send(const Request& request, int* fd) override {
    Reply reply;
    int got = -1;
    const bool sent = SendMessage(socket_, &request, sizeof request, fd != nullptr ? *fd : -1);
    if (!sent || ReceiveMessage(socket_, &reply, sizeof reply, got, true) != sizeof reply) {
      Wrong("machine", "the GPU's process has ended; see " + dir_ + "/" + kLogName);
    }
    if (fd != nullptr) *fd = got;
    return reply;
  }
  void Bell() override {
    if (area_->asleep.load(std::memory_order_seq_cst) == 0) return;
    const char kick = 0;
    SendMessage(socket_, &kick, sizeof kick, -1);
  }
  bool Step() override { Wrong("fake_cuda_step", "this machine runs by itself"); }
  Area& area() override { return *area_; }
  [[nodiscard]] int gpu_process() const override { return gpu_; }

 private:
  const std::string dir_;
  int socket_ = -1;
  int gpu_ = 0;
  Area* area_ = nullptr;
};

}  // namespace

std::unique_ptr<Link> SocketLink(const Config& config) { return std::make_unique<Socket>(config); }

}  // namespace weightcast::fake_cuda
