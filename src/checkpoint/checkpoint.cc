#include "checkpoint/checkpoint.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "base/strings.h"
#include "checkpoint/boxes.h"
#include "checkpoint/files.h"

namespace weightcast::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr const char* kModelFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";
constexpr size_t kMaxIndexBytes = 100'000'000;

// Which tensors each file must have.
using FileTensors = std::map<std::string, std::set<std::string>>;

Result<FileTensors> ReadIndex(const fs::path& index) {
  WC_ASSIGN_OR_RETURN(const std::string json, ReadTextFile(index, kMaxIndexBytes));
  auto map = ParseIndexText(json);
  if (!map.ok())
    return Error(Code::kCorrupt, index.native(), ": bad index: ", map.status().message(),
                 "; write the checkpoint again");
  FileTensors files;
  std::set<std::string_view> names;
  for (const auto& [tensor, file] : *map) {
    if (!names.insert(tensor).second)
      return Error(Code::kCorrupt, index.native(), ": tensor ", Shown(tensor),
                   " is listed twice; write the checkpoint again");
    if (Status status = CheckPlainName("file name", file); !status.ok())
      return Error(Code::kCorrupt, index.native(), ": tensor ", Shown(tensor), ": ", status.message(),
                   "; write the checkpoint again");
    files[file].insert(tensor);
  }
  if (files.empty())
    return Error(Code::kCorrupt, index.native(), " names no tensor; write the checkpoint again");
  return files;
}

Status CheckAgainstIndex(const SafetensorsFile& file, std::set<std::string> expected, const fs::path& index) {
  const auto refuse = [&](std::string_view name, std::string_view why) {
    return Error(Code::kCorrupt, file.path().native(), ": tensor ", Shown(name), why, index.native(),
                 "; write the checkpoint again, into an empty folder");
  };
  for (const auto& tensor : file.header().tensors)
    if (expected.erase(tensor.info.name) == 0)
      return refuse(tensor.info.name, " is in this file, but is not listed for it in ");
  if (!expected.empty()) return refuse(*expected.begin(), " is not in this file, but is listed for it in ");
  return Status::Ok();
}

// The only .safetensors file of a folder.
Result<fs::path> OnlyFile(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const auto& path = at->path();
    if (path.extension() == ".safetensors" && path.filename().native().front() != '.') found.push_back(path);
  }
  if (error) return FileError("list", folder, error.value());
  if (found.size() == 1) return found.front();
  return Error(Code::kInvalidArgument, folder.native(), " is not a checkpoint: it has neither ", kModelFile,
               " nor ", kIndexFile, ", and ", found.size(),
               " other .safetensors files; give a folder with one of the two, or with one such file");
}

bool Exists(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error);
}

// Copies runs of one tensor through a window, so that thin columns do not cost a system call each.
class Window {
 public:
  Window(const SafetensorsFile& file, size_t tensor) : file_(file), tensor_(tensor) {
    const StoredTensor& stored = file.header().tensors[tensor];
    tensor_bytes_ = static_cast<uint64_t>(stored.end - stored.begin);
  }

  Status Copy(uint64_t offset, std::span<std::byte> out) {
    if (out.size() >= kWindowBytes) return file_.Read(tensor_, offset, out);
    if (offset < begin_ || offset + out.size() > begin_ + window_.size()) {
      begin_ = offset;
      window_.resize(std::min<uint64_t>(kWindowBytes, tensor_bytes_ - offset));
      WC_RETURN_IF_ERROR(file_.Read(tensor_, offset, window_));
    }
    std::memcpy(out.data(), window_.data() + (offset - begin_), out.size());
    return Status::Ok();
  }

 private:
  static constexpr size_t kWindowBytes = size_t{256} << 10;
  const SafetensorsFile& file_;
  size_t tensor_;
  uint64_t tensor_bytes_ = 0;
  uint64_t begin_ = 0;
  std::vector<std::byte> window_;
};

}  // namespace

Result<Checkpoint> Checkpoint::Open(const fs::path& path) {
  std::error_code error;
  const auto status = fs::status(path, error);
  if (status.type() == fs::file_type::not_found)
    return Error(Code::kInvalidArgument, "no checkpoint at ", path.native(),
                 ": there is no such path; give the folder of a checkpoint, or its .safetensors file");
  if (error) return FileError("look at", path, error.value());
  if (!fs::is_directory(status)) return OpenSingle(path);
  if (Exists(path / kModelFile)) return OpenSingle(path / kModelFile);
  if (Exists(path / kIndexFile)) return OpenIndex(path, path / kIndexFile);
  WC_ASSIGN_OR_RETURN(const fs::path only, OnlyFile(path));
  return OpenSingle(only);
}

Result<Checkpoint> Checkpoint::OpenSingle(const fs::path& path) {
  Checkpoint checkpoint;
  WC_RETURN_IF_ERROR(checkpoint.AddFile(path));
  return checkpoint;
}

Result<Checkpoint> Checkpoint::OpenIndex(const fs::path& folder, const fs::path& index) {
  WC_ASSIGN_OR_RETURN(const FileTensors files, ReadIndex(index));
  Checkpoint checkpoint;
  for (const auto& [name, tensors] : files) {
    if (!Exists(folder / name))
      return Error(Code::kInvalidArgument, (folder / name).native(), " is missing: ", index.native(),
                   " places ", tensors.size(), " tensors in it, the first ", Shown(*tensors.begin()),
                   "; copy it there, or write the checkpoint again");
    WC_RETURN_IF_ERROR(checkpoint.AddFile(folder / name));
    WC_RETURN_IF_ERROR(CheckAgainstIndex(checkpoint.files_.back(), tensors, index));
  }
  return checkpoint;
}

Status Checkpoint::AddFile(const fs::path& path) {
  WC_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::Open(path));
  const auto& stored = file.header().tensors;
  for (size_t i = 0; i < stored.size(); ++i) {
    by_name_.emplace(stored[i].info.name, tensors_.size());
    tensors_.push_back(stored[i].info);
    places_.push_back({.file = files_.size(), .index = i});
  }
  data_bytes_ += file.header().data_bytes;
  files_.push_back(std::move(file));
  return Status::Ok();
}

std::optional<size_t> Checkpoint::Find(std::string_view name) const {
  const auto found = by_name_.find(std::string(name));
  if (found == by_name_.end()) return std::nullopt;
  return found->second;
}

const Header* Checkpoint::single_header() const {
  return files_.size() == 1 ? &files_.front().header() : nullptr;
}

Status Checkpoint::Read(size_t tensor, uint64_t offset, std::span<std::byte> out) const {
  return files_[places_[tensor].file].Read(places_[tensor].index, offset, out);
}

Status Checkpoint::ReadBox(size_t tensor, const Box& box, std::span<std::byte> out) const {
  WC_ASSIGN_OR_RETURN(const plan::Segments runs, RunsOf(tensors_[tensor], box, out.size()));
  Window window(files_[places_[tensor].file], places_[tensor].index);
  Status status;
  runs.ForEach([&](const plan::Segment& run) {
    if (status.ok())
      status =
          window.Copy(static_cast<uint64_t>(run.src_offset),
                      out.subspan(static_cast<size_t>(run.dst_offset), static_cast<size_t>(run.dst_bytes)));
  });
  return status;
}

Status Checkpoint::CheckUnchanged() const {
  for (const auto& file : files_) WC_RETURN_IF_ERROR(file.CheckUnchanged());
  return Status::Ok();
}

}  // namespace weightcast::checkpoint
