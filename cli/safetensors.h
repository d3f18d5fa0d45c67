// Safetensors files: 8 bytes of header length (little endian), a JSON header, then the tensors' bytes without
// holes. Source: github.com/huggingface/safetensors, README "Format"; the rules checked here are its own, and
// a file that breaks one is refused with a sentence that names the file and the tensor.
#ifndef TILEWISE_CLI_SAFETENSORS_H_
#define TILEWISE_CLI_SAFETENSORS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tilewise/tensor.h"

namespace tilewise::cli {

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own cap

// One element type of the format. `dtype` is none where the library has no such type.
struct FileType {
  const char* name;
  int bits;
  DType dtype;
};
const FileType* file_type(std::string_view name);
const FileType& file_type(DType dtype);  // not bit, not none

struct FileTensor {
  std::string name;
  const FileType* type = nullptr;
  std::vector<int64_t> shape;
  const std::byte* data = nullptr;  // row-major; aligned only as the file happens to be
  int64_t bytes = 0;
  int64_t elements() const;
  std::string to_string() const;  // "q F16 [1,512,12,32]"
};

// An open file, mapped read-only; tensors point into it.
class SafetensorsFile {
 public:
  static Expected<SafetensorsFile> open(const std::string& path);
  // Over bytes that outlive the result; `name` stands for the file in messages.
  static Expected<SafetensorsFile> parse(std::string name, const std::byte* data, size_t bytes);

  const std::vector<FileTensor>& tensors() const { return tensors_; }  // by name
  const FileTensor* find(std::string_view name) const;
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  std::shared_ptr<const std::byte> mapping_;
  std::vector<FileTensor> tensors_;
  std::map<std::string, std::string> metadata_;
};

// Writes beside `path` and renames, so that `path` is either as before or whole. Tensors are row-major.
Status write_safetensors(const std::string& path, std::vector<FileTensor> tensors,
                         const std::map<std::string, std::string>& metadata);
// Any file, written the same way.
Status write_whole(const std::string& path, const std::string& bytes);
// Whether a later write has a chance: the folder is there and writable, and `path` is no folder or device.
Status can_write(const std::string& path);

std::string shape_text(const std::vector<int64_t>& shape);  // "[1,512,12,32]"

}  // namespace tilewise::cli
#endif  // TILEWISE_CLI_SAFETENSORS_H_
