// The ONNX attention cases through the C++ API, and their score matrices through the oracle. The mapping is
// tests/cases/onnx/README.md's, written here a second time so that neither it nor the command line can hide a
// mistake of the other.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>

#include "api/bind.h"
#include "cli/safetensors.h"
#include "core/text.h"
#include "reference/elements.h"
#include "reference/oracle.h"
#include "tilewise/attention.h"

namespace tilewise {
namespace {

using cli::FileTensor;
using cli::SafetensorsFile;

std::vector<std::string> case_files() {
  std::vector<std::string> files;
  for (const auto& entry :
       std::filesystem::directory_iterator(cat(TILEWISE_SOURCE_DIR, "/tests/cases/onnx"))) {
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path().string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

// A tensor of ours with memory of its own.
struct Owned {
  std::vector<std::byte> bytes;
  DType dtype = DType::none;
  std::vector<int64_t> shape;

  Tensor view() {
    Tensor t;
    t.data = bytes.data();
    t.dtype = static_cast<int32_t>(dtype);
    t.rank = static_cast<int32_t>(shape.size());
    int64_t stride = 1;
    for (size_t n = shape.size(); n-- > 0;) {
      t.shape[n] = shape[n];
      t.stride[n] = stride;
      stride *= shape[n];
    }
    return t;
  }
};

Owned copy_of(const FileTensor& tensor) {
  return {{tensor.data, tensor.data + tensor.bytes}, tensor.type->dtype, tensor.shape};
}

class OnnxCase {
 public:
  explicit OnnxCase(const std::string& path) {
    auto opened = SafetensorsFile::open(path);
    EXPECT_TRUE(opened.ok()) << opened.status().message();
    file_ = std::make_unique<SafetensorsFile>(std::move(*opened));
  }

  std::string op() const { return text("op", ""); }
  const FileTensor* output(const char* name) const { return file_->find(cat("out.", name)); }
  double number(const char* name, double otherwise) const {
    const auto found = file_->metadata().find(name);
    return found == file_->metadata().end() ? otherwise : std::strtod(found->second.c_str(), nullptr);
  }

  void map() {
    const bool split = input("Q")->shape.size() == 3;  // [batch, seqlen, heads * dim]
    q_ = copy_of(*input("Q"));
    k_ = with_past(copy_of(*input("K")), "past_key", split);
    v_ = with_past(copy_of(*input("V")), "past_value", split);
    if (split) {
      const auto heads_q = static_cast<int64_t>(number("q_num_heads", 1));
      q_.shape = {q_.shape[0], q_.shape[1], heads_q, q_.shape[2] / heads_q};
    }
    tensors.q = as_bshd(q_, split);
    tensors.k = as_bshd(k_, split);
    tensors.v = as_bshd(v_, split);
    batch_ = tensors.q.shape[0];
    seqlen_q_ = tensors.q.shape[1];
    seqlen_kv_ = tensors.k.shape[1];
    o_.dtype = q_.dtype;
    o_.shape = q_.shape;
    o_.shape.back() = v_.shape.back();
    o_.bytes.resize(static_cast<size_t>(batch_ * seqlen_q_ * tensors.q.shape[2] * tensors.v.shape[3]) *
                    static_cast<size_t>(bits_of(o_.dtype) / 8));
    tensors.o = as_bshd(o_, split);
    map_mask();
    map_positions();
    if (number("scale", 0.0) != 0.0) options.softmax_scale = static_cast<float>(number("scale", 0.0));
    options.softcap = static_cast<float>(number("softcap", 0.0));
  }

  Problem options;
  Tensors tensors{};

 private:
  const FileTensor* input(const char* name) const { return file_->find(cat("in.", name)); }
  std::string text(const char* name, const char* otherwise) const {
    const auto found = file_->metadata().find(name);
    return found == file_->metadata().end() ? otherwise : found->second;
  }

  // Concatenates past [batch, heads, past, dim] before `now`; the result is [batch, heads, rows, dim].
  Owned with_past(Owned now, const char* name, bool split) {
    const auto heads = static_cast<int64_t>(number("kv_num_heads", 1));
    if (split) now.shape = {now.shape[0], now.shape[1], heads, now.shape[2] / heads};
    const FileTensor* past = input(name);
    if (past == nullptr) return now;
    past_ = past->shape[2];
    const int64_t rows = split ? now.shape[1] : now.shape[2];
    Owned both;
    both.dtype = now.dtype;
    both.shape = now.shape;
    (split ? both.shape[1] : both.shape[2]) = past_ + rows;
    const int64_t size = bits_of(now.dtype) / 8, row_bytes = now.shape[3] * size;
    both.bytes.resize(static_cast<size_t>(both.shape[0] * both.shape[1] * both.shape[2] * row_bytes));
    const int64_t head_count = split ? now.shape[2] : now.shape[1];
    for (int64_t b = 0; b < now.shape[0]; ++b) {
      for (int64_t h = 0; h < head_count; ++h) {
        for (int64_t t = 0; t < past_ + rows; ++t) {
          const auto place = [&](int64_t all_rows, int64_t row) {
            return (split ? (b * all_rows + row) * head_count + h : (b * head_count + h) * all_rows + row) *
                   row_bytes;
          };
          const std::byte* from = t < past_ ? past->data + ((b * head_count + h) * past_ + t) * row_bytes
                                            : now.bytes.data() + place(rows, t - past_);
          std::memcpy(both.bytes.data() + place(past_ + rows, t), from, static_cast<size_t>(row_bytes));
        }
      }
    }
    return both;
  }

  static Tensor as_bshd(Owned& tensor, bool split) {
    return split ? tensor.view() : tensor.view().bhsd_as_bshd();
  }

  void map_mask() {
    const FileTensor* given = input("attn_mask");
    if (given == nullptr) return;
    mask_ = copy_of(*given);
    while (mask_.shape.size() < 4) mask_.shape.insert(mask_.shape.begin(), 1);
    const int64_t width = mask_.shape[3];
    if (width < seqlen_kv_) {
      Owned wide;
      wide.dtype = mask_.dtype;
      wide.shape = mask_.shape;
      wide.shape[3] = seqlen_kv_;
      const int64_t rows = mask_.shape[0] * mask_.shape[1] * mask_.shape[2], size = bits_of(mask_.dtype) / 8;
      wide.bytes.assign(static_cast<size_t>(rows * seqlen_kv_ * size), std::byte{0});
      for (int64_t row = 0; row < rows; ++row) {
        std::memcpy(wide.bytes.data() + row * seqlen_kv_ * size, mask_.bytes.data() + row * width * size,
                    static_cast<size_t>(width * size));
        for (int64_t j = width; mask_.dtype != DType::boolean && j < seqlen_kv_; ++j) {
          write_element(wide.bytes.data(), wide.dtype, row * seqlen_kv_ + j,
                        -std::numeric_limits<double>::infinity());
        }
      }
      mask_ = std::move(wide);
    }
    (mask_.dtype == DType::boolean ? tensors.mask : tensors.bias) = mask_.view();
  }

  void map_positions() {
    const bool causal = number("is_causal", 0) != 0;
    options.causal = causal ? 1 : 0;
    options.window_left = static_cast<int64_t>(number("left_window_size", -1));
    options.window_right = causal ? 0 : static_cast<int64_t>(number("right_window_size", -1));
    options.position = TILEWISE_GIVEN;
    tensors.q_offset_value = past_;
    if (const FileTensor* nonpad = input("nonpad_kv_seqlen")) {
      for (int64_t b = 0; b < batch_; ++b) {
        int64_t length = 0;
        std::memcpy(&length, nonpad->data + b * 8, 8);
        kv_lengths_.push_back(static_cast<int32_t>(length));
        q_offset_.push_back(static_cast<int32_t>(length - seqlen_q_));
      }
      tensors.kv_lengths = Tensor(kv_lengths_.data(), {batch_});
      tensors.q_offset = Tensor(q_offset_.data(), {batch_});
    }
  }

  std::unique_ptr<SafetensorsFile> file_;
  Owned q_, k_, v_, o_, mask_;
  std::vector<int32_t> kv_lengths_, q_offset_;
  int64_t batch_ = 0, seqlen_q_ = 0, seqlen_kv_ = 0, past_ = 0;
};

// |x - y| <= atol + rtol |y|; recorded 16-bit values are up to a unit of theirs from fp64.
void expect_close(double got, double recorded, DType dtype, const OnnxCase& c, const std::string& where) {
  if (!std::isfinite(recorded)) {
    EXPECT_TRUE(got == recorded || (std::isnan(got) && std::isnan(recorded)))
        << where << ": " << got << " for " << recorded;
    return;
  }
  double allowed = c.number("atol", 1e-7) + c.number("rtol", 1e-3) * std::fabs(recorded);
  if (dtype != DType::f32)
    allowed += 2.0 * rounding_unit(dtype) * std::max(std::fabs(recorded), smallest_normal(dtype));
  EXPECT_NEAR(got, recorded, allowed) << where;
}

class Onnx : public testing::TestWithParam<std::string> {};

TEST_P(Onnx, OutputAndScoresAreTheRecordedOnes) {
  OnnxCase c(GetParam());
  if (c.op() == "LinearAttention") GTEST_SKIP() << "waiting: LinearAttention has no kernel yet";
  ASSERT_TRUE(c.op() == "Attention" || c.op() == "FlexAttention") << "unknown operator " << c.op();
  c.map();

  const auto context = Context::create();
  ASSERT_TRUE(context.ok()) << context.status().message();
  const Status status = attention(*context, c.options, c.tensors);
  ASSERT_TRUE(status.ok()) << status.message();
  const FileTensor& y = *c.output("Y");
  ASSERT_EQ(y.type->dtype, static_cast<DType>(c.tensors.o.dtype));
  const int64_t count = y.elements();
  ASSERT_GT(count, 0);
  for (int64_t n = 0; n < count; ++n) {  // o was laid out as Y is
    expect_close(read_element(c.tensors.o.data, y.type->dtype, n), read_element(y.data, y.type->dtype, n),
                 y.type->dtype, c, cat("Y[", n, "]"));
  }

  const FileTensor* scores = c.output("qk_matmul_output");
  if (scores == nullptr) return;
  const auto problem = problem_from(c.options, c.tensors);
  ASSERT_TRUE(problem.ok()) << problem.status().message();
  ForwardParams params;
  ASSERT_TRUE(bind_forward(*problem, Place(), c.tensors, &params).ok());
  const auto stage = static_cast<ScoreStage>(static_cast<int>(c.number("qk_matmul_output_mode", 0)));
  ASSERT_EQ(scores->shape,
            (std::vector<int64_t>{params.batch, params.heads_q, params.seqlen_q, params.seqlen_kv}));
  int64_t at = 0;
  for (int64_t b = 0; b < params.batch; ++b) {
    for (int64_t h = 0; h < params.heads_q; ++h) {
      for (int64_t i = 0; i < params.seqlen_q; ++i) {
        const std::vector<double> row = oracle_scores(params, b, h, i, stage);
        for (int64_t j = 0; j < params.seqlen_kv; ++j, ++at) {
          expect_close(row[static_cast<size_t>(j)], read_element(scores->data, scores->type->dtype, at),
                       scores->type->dtype, c, cat("qk_matmul_output[", b, ",", h, ",", i, ",", j, "]"));
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, Onnx, testing::ValuesIn(case_files()), [](const auto& subject) {
  return std::filesystem::path(subject.param).stem().string();
});

TEST(OnnxCases, AreAllHere) { EXPECT_EQ(case_files().size(), 73u); }

}  // namespace
}  // namespace tilewise
