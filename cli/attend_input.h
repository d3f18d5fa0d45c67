// AttendInput: the tensors of a file, read as one attention call.
#ifndef TILEWISE_CLI_ATTEND_INPUT_H_
#define TILEWISE_CLI_ATTEND_INPUT_H_

#include <string>
#include <vector>

#include "cli/attend.h"
#include "cli/memory.h"
#include "cli/safetensors.h"
#include "tilewise/attention.h"

namespace tilewise::cli {

inline Status wrong(const std::string& sentence) { return Status(Code::invalid, sentence); }

// "" is not given, "yes" is --causal alone.
inline bool known_causal(const std::string& text) {
  return text.empty() || text == "yes" || text == "bottom-right" || text == "top-left";
}
inline Status refused_causal(const std::string& text) {
  return wrong("--causal was given '" + text + "'; accepted is nothing, bottom-right or top-left.");
}

class AttendInput {
 public:
  // Reads shapes and the small tensors. What must be converted (--dtype, F64) has a shape and a dtype but no
  // memory of its own until convert().
  static Expected<AttendInput> read(const AttendArguments& arguments);

  int64_t file_bytes() const;        // of the tensors that the call uses
  int64_t conversion_bytes() const;  // that convert() will allocate
  Status convert();

  Problem options;  // direction forward; sizes left to problem_from()
  Tensors tensors{};
  SafetensorsFile file;
  bool bhsd = false, packed = false;
  const char* cache = nullptr;        // by which k and v are a cache: page_table or cache_batch_idx
  std::string reading;                // "q [1,512,12,32] read as bshd: ..."
  std::vector<std::string> warnings;  // one line each

  // Output memory is laid out as q, k or v is: a row-major tensor in the file's own order of dimensions.
  std::vector<int64_t> file_shape(const tilewise_tensor& like) const;
  Tensor view(void* data, DType dtype, const std::vector<int64_t>& in_file) const;

 private:
  struct Pending {
    const FileTensor* from;
    tilewise_tensor Tensors::*to;
  };
  Status take(const char* name, tilewise_tensor Tensors::*to, DType wanted, bool rows);
  Status take_score(const char* name, tilewise_tensor Tensors::*to, bool boolean);
  Status take_integers(const char* name, tilewise_tensor Tensors::*to, int rank, bool wide);
  Status read_options(const AttendArguments& arguments);
  Status read_tensors(DType dtype);
  Status check_shapes() const;
  void describe();
  void warn_of_unknown_names();
  Expected<const FileTensor*> used(const char* name);  // null: not in the file

  std::vector<Pending> pending_;
  std::vector<Buffer> owned_;
  std::vector<const FileTensor*> used_;
};

}  // namespace tilewise::cli
#endif  // TILEWISE_CLI_ATTEND_INPUT_H_
