#include "contract/child.h"

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>

#include "base/bytes.h"

namespace weightcast::transport {

void Channel::Send(std::string_view message) {
  Require(
      send(fd_.get(), message.data(), message.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(message.size()),
      "the other process is gone");
}

std::string Channel::Receive() {
  pollfd entry{.fd = fd_.get(), .events = POLLIN, .revents = 0};
  const auto limit = std::chrono::duration_cast<std::chrono::milliseconds>(kPatience).count();
  Require(poll(&entry, 1, static_cast<int>(limit)) == 1, "the other process is silent");
  std::array<char, 65536> buffer;
  const ssize_t got = recv(fd_.get(), buffer.data(), buffer.size(), 0);
  Require(got > 0, "the other process is gone");
  return {buffer.data(), static_cast<size_t>(got)};
}

bool Channel::Readable() const {
  pollfd entry{.fd = fd_.get(), .events = POLLIN, .revents = 0};
  return poll(&entry, 1, 0) == 1;
}

Child::Child(const std::function<void(Channel&)>& body) {
  std::array<int, 2> pair{};
  Require(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair.data()) == 0, "socketpair");
  UniqueFd ours(pair[0]);
  UniqueFd theirs(pair[1]);
  pid_ = fork();
  Require(pid_ >= 0, "fork");
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    ours.reset();
    Channel channel(std::move(theirs));
    body(channel);
    _exit(0);
  }
  channel_ = Channel(std::move(ours));
}

Child::~Child() { Kill(); }

void Child::Signal(int number) const { Require(kill(pid_, number) == 0, "kill"); }

void Child::Stop() const {
  Signal(SIGSTOP);
  int status = 0;
  Require(waitpid(pid_, &status, WUNTRACED) == pid_ && WIFSTOPPED(status), "the child has not stopped");
}

void Child::Kill() {
  if (pid_ < 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

Incarnation ConnectOver(Channel& channel, Side& side, LinkId link, Role role) {
  const auto deadline = Clock::now() + kPatience;
  ByteWriter hello;
  hello.Put(side.self());
  channel.Send(hello.bytes());
  const std::string heard = channel.Receive();
  const auto peer = ByteReader(heard).Get<uint64_t>();
  if (role == Role::kInitiator) {
    auto offer = side.transport().OpenLink(link, role, peer, "", deadline);
    Require(offer.ok(), offer.status().message());
    channel.Send(*offer);
    const Status status = side.transport().Establish(link, channel.Receive());
    Require(status.ok(), status.message());
  } else {
    auto answer = side.transport().OpenLink(link, role, peer, channel.Receive(), deadline);
    Require(answer.ok(), answer.status().message());
    channel.Send(*answer);
  }
  Require(PumpUntil({&side}, [&] { return side.ready.contains(link); }), "the link does not become ready");
  return peer;
}

std::string Pack(const Described& region) {
  ByteWriter out;
  out.Put(region.name.owner);
  out.Put(region.name.id);
  out.Put(region.name.generation);
  out.Put(region.length);
  out.PutString(region.key);
  return out.Take();
}

Described Unpack(std::string_view bytes) {
  ByteReader in(bytes);
  Described region;
  region.name.owner = in.Get<uint64_t>();
  region.name.id = in.Get<uint32_t>();
  region.name.generation = in.Get<uint32_t>();
  region.length = in.Get<uint64_t>();
  region.key = in.GetString(4096);
  Require(in.AtEnd(), "a description is damaged");
  return region;
}

}  // namespace weightcast::transport
