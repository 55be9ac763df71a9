#include "control/token.h"

#include <fcntl.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <mutex>
#include <span>
#include <utility>

#include "base/fd.h"
#include "base/log.h"
#include "base/random.h"
#include "base/strings.h"
#include "stream/shared_key.h"

namespace weightcast::control {
namespace {

constexpr size_t kMaxTokenBytes = 4096;
constexpr size_t kRandomBytes = 32;
constexpr int kAttempts = 100;
constexpr const char* kEnvironment = "WEIGHTCAST_TOKEN";
constexpr std::string_view kTokenName = "/token";

Status Unreadable(const std::string& path, int error) {
  return Error(Code::kInvalidArgument, "cannot read the job token in ", path, ": ", ErrnoText(error),
               "; set WEIGHTCAST_TOKEN, or setting token_file to a file that this user can read");
}

Result<std::string> ReadAll(int fd, const std::string& path) {
  std::string text(kMaxTokenBytes + 1, '\0');
  size_t size = 0;
  while (size < text.size()) {
    const ssize_t got = ::read(fd, text.data() + size, text.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Unreadable(path, errno);
    if (got == 0) break;
    size += static_cast<size_t>(got);
  }
  if (size > kMaxTokenBytes)
    return Error(Code::kInvalidArgument, path, " has more than ", kMaxTokenBytes,
                 " bytes, too many for a job token; make one with `openssl rand -hex 32`");
  text.resize(size);
  return stream::CheckTokenText(std::move(text), path);
}

/// What others may write is not secret, and what others may read only if the user has not minded.
Status CheckPrivate(const struct stat& info, const std::string& path, mode_t forbidden) {
  if (info.st_uid != ::geteuid())
    return Error(Code::kPermission, path, " belongs to user ", info.st_uid, ", not to you (", ::geteuid(),
                 "); remove it, or set WEIGHTCAST_TOKEN or setting token_file");
  if ((info.st_mode & forbidden) != 0)
    return Error(Code::kPermission, "other users have access to ", path, "; run: chmod go-rwx ", path);
  return Status::Ok();
}

Result<std::string> ReadConfigured(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) return Unreadable(path, errno);
  struct stat info{};
  if (::fstat(fd.get(), &info) != 0) return Unreadable(path, errno);
  if (!S_ISREG(info.st_mode))
    return Error(Code::kInvalidArgument, path,
                 " is not a regular file with a job token; name one in setting token_file");
  if ((info.st_mode & (S_IWGRP | S_IWOTH | S_IROTH)) != 0)
    return Error(Code::kPermission, "other users can read or write the job token in ", path,
                 "; run: chmod go-rwx ", path);
  return ReadAll(fd.get(), path);
}

/// The user's own folder, made if it is not there; nobody else can look into it.
Result<UniqueFd> OpenFolder(const std::string& path) {
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST)
    return Error(Code::kPermission, "cannot make ", path, " for the job token: ", ErrnoText(errno),
                 "; set WEIGHTCAST_TOKEN or setting token_file");
  UniqueFd folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!folder.valid())
    return Error(Code::kPermission, "cannot open the folder ", path, " for the job token: ", ErrnoText(errno),
                 "; set WEIGHTCAST_TOKEN or setting token_file");
  struct stat info{};
  if (::fstat(folder.get(), &info) != 0) return Unreadable(path, errno);
  WC_RETURN_IF_ERROR(CheckPrivate(info, path, S_IRWXG | S_IRWXO));
  return folder;
}

Status WriteAll(int fd, std::string_view bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t put = ::write(fd, bytes.data(), bytes.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0)
      return Error(Code::kExhausted, "cannot write ", path, ": ", ErrnoText(errno),
                   "; make room there, or set WEIGHTCAST_TOKEN or setting token_file");
    bytes.remove_prefix(static_cast<size_t>(put));
  }
  return Status::Ok();
}

/// Makes the file whole under another name and links it into place: a process that reads it reads all of it,
/// and of two that come at once one wins and both read that one's.
Status Publish(const UniqueFd& folder, const std::string& path) {
  std::array<std::byte, kRandomBytes> random{};
  FillRandom(random);
  const std::string secret = ToHex({reinterpret_cast<const char*>(random.data()), random.size()});
  const std::string temporary = StrCat("token.", RandomId());
  const UniqueFd file(
      ::openat(folder.get(), temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!file.valid())
    return Error(Code::kPermission, "cannot write the job token to ", path, ": ", ErrnoText(errno),
                 "; set WEIGHTCAST_TOKEN or setting token_file");
  Status status = WriteAll(file.get(), secret + "\n", path);
  if (status.ok() && ::linkat(folder.get(), temporary.c_str(), folder.get(), "token", 0) != 0 &&
      errno != EEXIST)
    status = Error(Code::kPermission, "cannot write the job token to ", path, ": ", ErrnoText(errno),
                   "; set WEIGHTCAST_TOKEN or setting token_file");
  ::unlinkat(folder.get(), temporary.c_str(), 0);
  return status;
}

/// Empty if there is none.
Result<std::string> ReadOwn(const UniqueFd& folder, const std::string& path) {
  const UniqueFd file(::openat(folder.get(), "token", O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  if (!file.valid() && errno == ENOENT) return std::string();
  if (!file.valid()) return Unreadable(path, errno);
  struct stat info{};
  if (::fstat(file.get(), &info) != 0) return Unreadable(path, errno);
  if (!S_ISREG(info.st_mode))
    return Error(Code::kPermission, path, " is not a regular file with a job token; remove it");
  WC_RETURN_IF_ERROR(CheckPrivate(info, path, S_IRWXG | S_IRWXO));
  return ReadAll(file.get(), path);
}

Result<std::string> ReadOrMake(const std::string& folder_path) {
  WC_ASSIGN_OR_RETURN(const UniqueFd folder, OpenFolder(folder_path));
  const std::string path = StrCat(folder_path, kTokenName);
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    WC_ASSIGN_OR_RETURN(std::string secret, ReadOwn(folder, path));
    if (!secret.empty()) return secret;
    WC_RETURN_IF_ERROR(Publish(folder, path));
  }
  return Error(Code::kPermission, path, " was removed each of ", kAttempts,
               " times that it was written; set WEIGHTCAST_TOKEN or setting token_file");
}

/// $XDG_CACHE_HOME or ~/.cache, where no other user can make anything; made if it is not there.
std::string CacheFolder() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && cache[0] == '/') return cache;
  const char* home = std::getenv("HOME");
  const passwd* user = home == nullptr || home[0] != '/' ? ::getpwuid(::geteuid()) : nullptr;
  const std::string folder = StrCat(user != nullptr ? user->pw_dir : home != nullptr ? home : "", "/.cache");
  ::mkdir(folder.c_str(), 0700);
  return folder;
}

/// All processes of a user on a host choose the same, whatever other users do.
std::string OwnFolder() {
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  if (runtime != nullptr && runtime[0] == '/' && ::access(runtime, W_OK | X_OK) == 0)
    return StrCat(runtime, "/weightcast");
  // Anyone can make names in /tmp, but nobody can take away one that is ours.
  std::string shared = StrCat("/tmp/weightcast-", ::geteuid());
  struct stat info{};
  if (::mkdir(shared.c_str(), 0700) == 0 || ::lstat(shared.c_str(), &info) != 0 || info.st_uid == ::geteuid())
    return shared;
  std::string own = StrCat(CacheFolder(), "/weightcast");
  static std::once_flag said;
  std::call_once(said, [&] {
    WC_LOG(kWarning, shared, " belongs to user ", info.st_uid, ", not to you; the token is in ", own,
           " instead. Remove the first, or set token_file for all processes of the job");
  });
  return own;
}

}  // namespace

Result<Token> Token::Parse(std::string_view text, bool configured, std::string origin) {
  const auto named = [&](const Status& why) { return Error(why.code(), origin, ": ", why.message()); };
  if (stream::RoleToken::IsOne(text)) {
    auto role = stream::RoleToken::Parse(text);
    if (!role.ok()) return named(role.status());
    return Token(std::move(*role), text, configured, std::move(origin));
  }
  auto master = stream::MasterToken::Parse(text);
  if (!master.ok()) return named(master.status());
  return Token(std::move(*master), text, configured, std::move(origin));
}

Result<stream::MasterToken> Token::Master() const {
  if (const auto* master = std::get_if<stream::MasterToken>(&keys_)) return *master;
  return Error(Code::kPermission, origin_, " holds a role token (of `weightcast token`), and this process ",
               "needs the job's master token, from which that was made: set WEIGHTCAST_TOKEN or setting ",
               "token_file to the master token");
}

Result<stream::RoleToken> Token::ForWorker(const stream::Member& member) const {
  // Without the engine: who has the master token is not bound to one, and its name stays private.
  if (const auto* master = std::get_if<stream::MasterToken>(&keys_))
    return stream::RoleToken::Derive(*master, {.role = member.role});
  const auto& role = std::get<stream::RoleToken>(keys_);
  if (stream::Covers(role.member(), member)) return role;
  return Error(Code::kPermission, "the token in ", origin_, " is for ", stream::MemberText(role.member()),
               ", this process is ", stream::MemberText(member), "; give it one of `weightcast token --role ",
               stream::RoleName(member.role), "`");
}

Result<stream::RoleToken> Token::ForObserver() const {
  if (const auto* master = std::get_if<stream::MasterToken>(&keys_))
    return stream::RoleToken::Derive(*master, {.role = stream::Role::kObserver});
  return std::get<stream::RoleToken>(keys_);
}

Result<std::string> Token::SharedKey(stream::Purpose purpose) const {
  WC_ASSIGN_OR_RETURN(const stream::Secret key, stream::SharedKeyOf(text_.bytes(), purpose, origin_));
  return std::string(key.bytes());
}

stream::Member MemberOf(const protocol::WorkerName& name) {
  if (name.role == protocol::Role::kTrainer) return {.role = stream::Role::kTrainer};
  return {.role = stream::Role::kInference, .engine = name.engine};
}

Result<Token> LoadToken(const Settings& settings) {
  const char* environment = std::getenv(kEnvironment);
  if (environment != nullptr && environment[0] != '\0') {
    WC_ASSIGN_OR_RETURN(const std::string text, stream::CheckTokenText(environment, kEnvironment));
    return Token::Parse(text, true, kEnvironment);
  }
  if (!settings.token_file.empty()) {
    WC_ASSIGN_OR_RETURN(const std::string text, ReadConfigured(settings.token_file));
    return Token::Parse(text, true, settings.token_file);
  }
  const std::string folder = OwnFolder();
  WC_ASSIGN_OR_RETURN(const std::string text, ReadOrMake(folder));
  return Token::Parse(text, false, StrCat(folder, kTokenName));
}

Result<Token> ReadTokenAgain(const Token& token) {
  const std::string& origin = token.origin();
  if (origin == kEnvironment) return token;
  if (token.configured()) {
    WC_ASSIGN_OR_RETURN(const std::string text, ReadConfigured(origin));
    return Token::Parse(text, true, origin);
  }
  WC_ASSIGN_OR_RETURN(const UniqueFd folder, OpenFolder(origin.substr(0, origin.size() - kTokenName.size())));
  WC_ASSIGN_OR_RETURN(const std::string text, ReadOwn(folder, origin));
  if (text.empty()) return Unreadable(origin, ENOENT);
  return Token::Parse(text, false, origin);
}

}  // namespace weightcast::control
