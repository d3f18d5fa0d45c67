// What must hold for any bytes: the reader refuses with one sentence, or every tensor lies inside the bytes.
#ifndef TILEWISE_TESTS_FUZZ_SAFETENSORS_CHECK_H_
#define TILEWISE_TESTS_FUZZ_SAFETENSORS_CHECK_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "cli/safetensors.h"

namespace tilewise::cli {

// Empty, or what is wrong with the reader.
inline std::string safetensors_fault(const std::byte* data, size_t bytes) {
  const auto file = SafetensorsFile::parse("fuzz", data, bytes);
  if (!file) {
    const std::string text = file.status().message();
    if (file.status().code() != Code::invalid) return "refused with a code other than invalid";
    if (text.rfind("fuzz: ", 0) != 0) return "a refusal that does not name the file: " + text;
    if (text.back() != '.') return "a refusal that is no sentence: " + text;
    if (text.size() > 4096) return "an endless refusal";
    return "";
  }
  const std::byte* end = data + bytes;
  for (const FileTensor& t : file->tensors()) {
    if (t.bytes < 0 || t.data < data || t.data > end || t.bytes > end - t.data)
      return t.name + " leaves the file";
    if (!t.type) return t.name + " has no type";
    if (t.elements() * t.type->bits / 8 != t.bytes) return t.name + " has other bytes than its shape says";
    if (file->find(t.name) != &t) return t.name + " is not found by its name";
  }
  return "";
}

}  // namespace tilewise::cli
#endif  // TILEWISE_TESTS_FUZZ_SAFETENSORS_CHECK_H_
