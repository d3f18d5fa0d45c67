#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "cli/json.h"
#include "cli/safetensors.h"

namespace tilewise::cli {
namespace {

Status refuse(const std::string& path, const std::string& why) {
  return Status(Code::invalid, "output " + path + ": " + why + ".");
}

// A file that is removed unless it was renamed to where it belongs.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& target)
      : path_(target + ".tmp." + std::to_string(getpid())),
        descriptor_(open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666)) {}
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile() {
    if (descriptor_ < 0) return;
    if (!closed_) close(descriptor_);
    if (!kept_) unlink(path_.c_str());
  }
  bool ok() const { return descriptor_ >= 0; }
  bool write_all(const void* data, size_t bytes) {
    const char* at = static_cast<const char*>(data);
    while (bytes > 0) {
      const ssize_t n = ::write(descriptor_, at, std::min<size_t>(bytes, size_t{1} << 30));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return false;
      at += n;
      bytes -= static_cast<size_t>(n);
    }
    return true;
  }
  bool rename_to(const std::string& target) {
    if (fsync(descriptor_) != 0 && errno != EINVAL) return false;
    closed_ = true;
    if (close(descriptor_) != 0) return false;
    return kept_ = std::rename(path_.c_str(), target.c_str()) == 0;
  }

 private:
  std::string path_;
  int descriptor_;
  bool closed_ = false, kept_ = false;
};

// Where a link points to, so that the link stays.
std::string resolved(const std::string& path) {
  char buffer[PATH_MAX];
  return realpath(path.c_str(), buffer) ? std::string(buffer) : path;
}

}  // namespace

Status can_write(const std::string& path) {
  if (path.empty()) return refuse("''", "an empty name; give a file name");
  struct stat info {};
  if (stat(path.c_str(), &info) == 0) {
    if (S_ISDIR(info.st_mode)) return refuse(path, "this is a folder; give a file name");
    if (!S_ISREG(info.st_mode)) return refuse(path, "this is no regular file; give a file name");
  }
  std::filesystem::path folder = std::filesystem::path(resolved(path)).parent_path();
  if (folder.empty()) folder = ".";
  if (access(folder.c_str(), W_OK | X_OK) != 0)
    return refuse(path, "the folder " + folder.string() + " cannot be written: " + std::strerror(errno));
  return {};
}

Status write_safetensors(const std::string& path, std::vector<FileTensor> tensors,
                         const std::map<std::string, std::string>& metadata) {
  if (Status s = can_write(path); !s) return s;
  // Widest elements first keeps every tensor aligned to its own element.
  std::sort(tensors.begin(), tensors.end(), [](const FileTensor& a, const FileTensor& b) {
    return a.type->bits != b.type->bits ? a.type->bits > b.type->bits : a.name < b.name;
  });
  Json header = Json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  int64_t offset = 0;
  for (const FileTensor& t : tensors) {
    const std::vector<int64_t> place = {offset, offset + t.bytes};
    header[t.name] = object({{"dtype", t.type->name}, {"shape", t.shape}, {"data_offsets", place}});
    offset += t.bytes;
  }
  std::string text = header.dump(-1, ' ', false, Json::error_handler_t::replace);
  text.append((8 - text.size() % 8) % 8, ' ');
  unsigned char length[8];
  for (size_t i = 0; i < 8; ++i) length[i] = static_cast<unsigned char>(text.size() >> (8 * i) & 0xff);

  const std::string target = resolved(path);
  TemporaryFile file(target);
  if (!file.ok()) return refuse(path, std::strerror(errno));
  bool done = file.write_all(length, sizeof length) && file.write_all(text.data(), text.size());
  for (size_t i = 0; done && i < tensors.size(); ++i)
    done = file.write_all(tensors[i].data, static_cast<size_t>(tensors[i].bytes));
  if (!done || !file.rename_to(target))
    return refuse(path, std::string(std::strerror(errno)) + "; nothing was written");
  return {};
}

Status write_whole(const std::string& path, const std::string& bytes) {
  if (Status s = can_write(path); !s) return s;
  const std::string target = resolved(path);
  TemporaryFile file(target);
  if (!file.ok()) return refuse(path, std::strerror(errno));
  if (!file.write_all(bytes.data(), bytes.size()) || !file.rename_to(target))
    return refuse(path, std::string(std::strerror(errno)) + "; nothing was written");
  return {};
}

}  // namespace tilewise::cli
