#include "cli/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <set>

#include "cli/json.h"
#include "cli/text.h"

namespace tilewise::cli {
namespace {

constexpr std::array<FileType, 20> kTypes{{
    {"F32", 32, DType::f32},     {"F16", 16, DType::f16},       {"BF16", 16, DType::bf16},
    {"I32", 32, DType::i32},     {"I64", 64, DType::i64},       {"U64", 64, DType::u64},
    {"BOOL", 8, DType::boolean}, {"U8", 8, DType::none},        {"I8", 8, DType::i8},
    {"I16", 16, DType::none},    {"U16", 16, DType::none},      {"U32", 32, DType::none},
    {"F64", 64, DType::none},    {"F8_E4M3", 8, DType::f8e4m3}, {"F8_E5M2", 8, DType::none},
    {"F8_E8M0", 8, DType::none}, {"F6_E2M3", 6, DType::none},   {"F6_E3M2", 6, DType::none},
    {"F4", 4, DType::none},      {"C64", 64, DType::none},
}};

struct Entry {
  std::string name;
  const FileType* type = nullptr;
  std::vector<int64_t> shape;
  std::vector<uint64_t> offsets;
  bool has_type = false, has_shape = false, has_offsets = false;
};

// Receives the header's JSON event by event: { name: { dtype, shape: [..], data_offsets: [..] } }. Any other
// structure stops the parse at once, so depth and memory are bounded by the format's own.
class HeaderReader {
 public:
  std::vector<Entry> entries;
  std::map<std::string, std::string> metadata;
  std::string error;  // a sentence's end: "<file>: <error>"

  bool start_object(size_t) {
    if (depth_ == 0 || (depth_ == 1 && array_ == Array::none)) return depth_++, true;
    return unexpected("an object");
  }
  bool end_object() {
    --depth_;
    if (depth_ != 1 || in_metadata_) return in_metadata_ = false, true;
    const Entry& e = entries.back();
    const char* missing = !e.has_type      ? "dtype"
                          : !e.has_shape   ? "shape"
                          : !e.has_offsets ? "data_offsets"
                                           : nullptr;
    return missing ? fail("tensor " + in_quotes(e.name) + " has no " + missing) : true;
  }
  bool key(std::string& name) {
    if (depth_ == 1) {
      if (!names_.insert(name).second)
        return fail("the name " + in_quotes(name) + " stands twice in the header");
      in_metadata_ = name == "__metadata__";
      if (!in_metadata_) entries.emplace_back().name = std::move(name);
    } else {
      field_ = std::move(name);
      if (in_metadata_ && metadata.count(field_))
        return fail("__metadata__ has the key " + in_quotes(field_) + " twice");
    }
    return true;
  }
  bool start_array(size_t) {
    if (depth_ != 2 || in_metadata_ || array_ != Array::none) return unexpected("a list");
    Entry& e = entries.back();
    if (field_ == "shape") {
      if (std::exchange(e.has_shape, true)) return twice();
      array_ = Array::shape;
    } else if (field_ == "data_offsets") {
      if (std::exchange(e.has_offsets, true)) return twice();
      array_ = Array::offsets;
    } else {
      return unexpected("a list");
    }
    return true;
  }
  bool end_array() {
    array_ = Array::none;
    return true;
  }
  bool number_unsigned(uint64_t value) {
    if (array_ == Array::none) return unexpected("a number");
    Entry& e = entries.back();
    if (array_ == Array::shape) {
      if (value > static_cast<uint64_t>(INT64_MAX))
        return fail("tensor " + in_quotes(e.name) + " has the size " + std::to_string(value) +
                    " in its shape; at most 2^63 - 1 is accepted");
      if (e.shape.size() == kMaxRank)
        return fail("tensor " + in_quotes(e.name) + " has more than " + std::to_string(kMaxRank) +
                    " dimensions");
      e.shape.push_back(static_cast<int64_t>(value));
    } else {
      if (e.offsets.size() == 2)
        return fail("tensor " + in_quotes(e.name) + " has more than two data_offsets");
      e.offsets.push_back(value);
    }
    return true;
  }
  bool string(std::string& value) {
    if (depth_ == 2 && in_metadata_) {
      metadata.emplace(field_, std::move(value));
      return true;
    }
    if (depth_ != 2 || field_ != "dtype" || array_ != Array::none) return unexpected("a text");
    Entry& e = entries.back();
    if (std::exchange(e.has_type, true)) return twice();
    e.type = file_type(value);
    if (e.type) return true;
    std::string known;
    for (const FileType& t : kTypes) known += (known.empty() ? "" : " ") + std::string(t.name);
    return fail("tensor " + in_quotes(e.name) + " has the unknown dtype " + in_quotes(value) +
                "; known are " + known);
  }
  bool number_integer(int64_t value) {
    if (depth_ == 2 && !in_metadata_ && array_ != Array::none)
      return fail("tensor " + in_quotes(entries.back().name) + " has the negative number " +
                  std::to_string(value) + " in its " + field_);
    return unexpected("a negative number");
  }
  bool number_float(double, const std::string& text) {
    return unexpected("the number " + text.substr(0, 40));
  }
  bool null() { return unexpected("null"); }
  bool boolean(bool) { return unexpected("true or false"); }
  bool binary(Json::binary_t&) { return unexpected("binary data"); }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception&) {
    return fail("the header is not JSON (at its byte " + std::to_string(position) + ")");
  }

 private:
  enum class Array { none, shape, offsets };
  static constexpr size_t kMaxRank = 32;

  bool fail(std::string text) {
    if (error.empty()) error = std::move(text);
    return false;
  }
  bool twice() { return fail("tensor " + in_quotes(entries.back().name) + " has " + field_ + " twice"); }
  bool unexpected(const std::string& what) {
    std::string where = "at the header's top";
    if (depth_ >= 1 && in_metadata_)
      where = "in __metadata__, whose values must be texts";
    else if (depth_ >= 2)
      where = "as " + in_quotes(field_) + " of tensor " + in_quotes(entries.back().name);
    else if (depth_ == 1 && !entries.empty())
      where = "as tensor " + in_quotes(entries.back().name);
    return fail("the header has " + what + " " + where);
  }

  int depth_ = 0;
  bool in_metadata_ = false;
  Array array_ = Array::none;
  std::string field_;
  std::set<std::string> names_;
};

// elements * bits / 8, or nothing where that is no whole 63-bit number of bytes.
std::optional<int64_t> bytes_of(const std::vector<int64_t>& shape, int bits) {
  int64_t n = 1;
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  for (const int64_t size : shape)
    if (__builtin_mul_overflow(n, size, &n)) return std::nullopt;
  if (__builtin_mul_overflow(n, static_cast<int64_t>(bits), &n) || n % 8 != 0) return std::nullopt;
  return n / 8;
}

}  // namespace

const FileType* file_type(std::string_view name) {
  for (const FileType& t : kTypes)
    if (name == t.name) return &t;
  return nullptr;
}

const FileType& file_type(DType dtype) {
  for (const FileType& t : kTypes)
    if (dtype == t.dtype) return t;
  return kTypes[0];
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (const int64_t size : shape) {
    if (text.size() > 1) text += ',';
    text += std::to_string(size);
  }
  return text + "]";
}

int64_t FileTensor::elements() const {
  if (bytes == 0) return 0;
  int64_t n = 1;
  for (const int64_t size : shape) n *= size;
  return n;
}

std::string FileTensor::to_string() const { return name + " " + type->name + " " + shape_text(shape); }

Expected<SafetensorsFile> SafetensorsFile::parse(std::string name, const std::byte* data, size_t bytes) {
  const auto refuse = [&](const std::string& why) { return Status(Code::invalid, name + ": " + why + "."); };
  if (bytes < 8)
    return refuse("the file has " + std::to_string(bytes) +
                  " bytes; a safetensors file starts with 8 bytes of header length");
  uint64_t header_bytes = 0;
  for (int i = 7; i >= 0; --i) header_bytes = header_bytes << 8 | static_cast<uint64_t>(data[i]);
  if (header_bytes > kMaxHeaderBytes)
    return refuse("the header length says " + std::to_string(header_bytes) + " bytes; at most " +
                  std::to_string(kMaxHeaderBytes) + " are accepted, so this is no safetensors file");
  if (header_bytes > bytes - 8)
    return refuse("the header length says " + std::to_string(header_bytes) + " bytes, but only " +
                  std::to_string(bytes - 8) + " follow: the file is cut off or no safetensors file");
  const char* header = reinterpret_cast<const char*>(data + 8);
  if (header_bytes == 0 || header[0] != '{') return refuse("the header does not start with '{'");

  if (std::memchr(header, 0, header_bytes)) return refuse("the header is not JSON (it has a zero byte)");

  HeaderReader reader;
  const bool whole = Json::sax_parse(header, header + header_bytes, &reader);
  if (!whole || !reader.error.empty())
    return refuse(reader.error.empty() ? "the header is not JSON" : reader.error);

  const uint64_t data_bytes = bytes - 8 - header_bytes;
  std::sort(reader.entries.begin(), reader.entries.end(), [](const Entry& a, const Entry& b) {
    return a.offsets < b.offsets || (a.offsets == b.offsets && a.name < b.name);
  });
  SafetensorsFile file;
  file.path_ = name;
  uint64_t expected = 0;
  const std::string* before = nullptr;
  for (Entry& e : reader.entries) {
    const std::string tensor = "tensor " + in_quotes(e.name);
    if (e.offsets.size() != 2) return refuse(tensor + " needs two data_offsets, the first byte and the end");
    const uint64_t begin = e.offsets[0], end = e.offsets[1];
    const std::string range = "[" + std::to_string(begin) + "," + std::to_string(end) + "]";
    if (end < begin) return refuse(tensor + " has data_offsets " + range + " that run backwards");
    if (end > data_bytes)
      return refuse(tensor + " has data_offsets " + range + ", but the file has only " +
                    std::to_string(data_bytes) + " bytes of data: it is cut off or damaged");
    if (begin < expected) return refuse(tensor + " overlaps " + in_quotes(*before) + " in the file");
    if (begin > expected)
      return refuse(std::to_string(begin - expected) + " bytes before " + tensor + " belong to no tensor");
    const std::optional<int64_t> size = bytes_of(e.shape, e.type->bits);
    if (!size)
      return refuse(tensor + " has the shape " + shape_text(e.shape) + " of " + e.type->name +
                    ", which is no whole number of bytes below 2^63");
    if (static_cast<uint64_t>(*size) != end - begin)
      return refuse(tensor + " has the shape " + shape_text(e.shape) + " of " + e.type->name +
                    ", which needs " + std::to_string(*size) + " bytes, but its data_offsets " + range +
                    " hold " + std::to_string(end - begin));
    expected = end;
    FileTensor t;
    t.name = std::move(e.name);
    t.type = e.type;
    t.shape = std::move(e.shape);
    t.data = data + 8 + header_bytes + begin;
    t.bytes = *size;
    file.tensors_.push_back(std::move(t));
    before = &file.tensors_.back().name;
  }
  if (expected != data_bytes)
    return refuse("the last " + std::to_string(data_bytes - expected) + " bytes belong to no tensor");
  file.metadata_ = std::move(reader.metadata);
  std::sort(file.tensors_.begin(), file.tensors_.end(),
            [](const FileTensor& a, const FileTensor& b) { return a.name < b.name; });
  return file;
}

Expected<SafetensorsFile> SafetensorsFile::open(const std::string& path) {
  const auto refuse = [&](const std::string& why) { return Status(Code::invalid, path + ": " + why + "."); };
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) return refuse(std::strerror(errno));
  if (S_ISDIR(info.st_mode)) return refuse("this is a folder; a safetensors file is needed");
  if (!S_ISREG(info.st_mode)) return refuse("this is no regular file; a safetensors file on disk is needed");
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0 || fstat(descriptor, &info) != 0) {
    const int why = errno;
    if (descriptor >= 0) close(descriptor);
    return refuse(std::strerror(why));
  }
  const auto bytes = static_cast<size_t>(info.st_size);
  if (bytes == 0) {
    close(descriptor);
    return refuse("the file is empty; a safetensors file starts with 8 bytes of header length");
  }
  void* data = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, descriptor, 0);
  const int why = errno;
  close(descriptor);
  if (data == MAP_FAILED) return refuse(std::string("cannot be mapped: ") + std::strerror(why));
  std::shared_ptr<const std::byte> mapping(static_cast<const std::byte*>(data), [bytes](const std::byte* p) {
    munmap(const_cast<std::byte*>(p), bytes);
  });
  auto file = parse(path, mapping.get(), bytes);
  if (file) file->mapping_ = std::move(mapping);
  return file;
}

const FileTensor* SafetensorsFile::find(std::string_view name) const {
  const auto at = std::lower_bound(tensors_.begin(), tensors_.end(), name,
                                   [](const FileTensor& t, std::string_view n) { return t.name < n; });
  return at != tensors_.end() && at->name == name ? &*at : nullptr;
}

}  // namespace tilewise::cli
