/* What is asked: status, tensors, the problem. First half of the C99 border, which c.h includes; programs
 * include c.h, kernels this.
 *
 * Shapes use the letters B batch, Sq seqlen_q, Skv seqlen_kv, Hq heads_q, Hkv heads_kv, D head_dim, Dv
 * head_dim_v. */
#ifndef TILEWISE_C_PROBLEM_H_
#define TILEWISE_C_PROBLEM_H_

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define TILEWISE_API __declspec(dllexport)
#elif defined(__GNUC__)
#define TILEWISE_API __attribute__((visibility("default")))
#else
#define TILEWISE_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- status -------------------------------------------------------------------------------------------- */

typedef enum tilewise_code {
  TILEWISE_OK = 0,
  TILEWISE_INVALID =
      1, /* an argument breaks a rule; the message names it, what was given, what is accepted */
  TILEWISE_UNSUPPORTED =
      2, /* valid, but nothing here can run it; the message lists every kernel and its reason */
  TILEWISE_OUT_OF_MEMORY = 3, /* an allocation failed, or the workspace or the limit given is too small */
  TILEWISE_DEVICE = 4         /* the device or its driver reported a failure */
} tilewise_code;

#define TILEWISE_MESSAGE_BYTES 4096
typedef struct tilewise_error {
  char message[TILEWISE_MESSAGE_BYTES]; /* UTF-8, terminated; "" after success */
} tilewise_error;

TILEWISE_API const char* tilewise_version(void); /* "0.1.0" */

/* ---- tensors ------------------------------------------------------------------------------------------- */

typedef enum tilewise_dtype {
  TILEWISE_NONE = 0,
  TILEWISE_F32 = 1,
  TILEWISE_F16 = 2,
  TILEWISE_BF16 = 3,
  TILEWISE_I32 = 4,
  TILEWISE_I64 = 5,
  TILEWISE_U64 = 6,
  TILEWISE_BOOL = 7, /* one byte an element, 0 = false, anything else = true */
  TILEWISE_BIT =
      8, /* packed: element i is bit i%8 (least significant first) of byte i/8; shape and strides in bits */
  TILEWISE_F8E4M3 = 9, /* 8 bits, of k and v only: 4 of exponent, 3 of mantissa, no infinity, largest 448 */
  TILEWISE_I8 = 10     /* of k and v only: a whole number of -127 to 127 times its scale */
} tilewise_dtype;

typedef enum tilewise_device_kind { TILEWISE_CPU = 0, TILEWISE_CUDA = 1 } tilewise_device_kind;

#define TILEWISE_MAX_RANK 4
#define TILEWISE_READ_ONLY 1u /* tensor flag: refused as an output */

/* A view; owns nothing. Absent: dtype TILEWISE_NONE. `data` may be NULL only where the tensor has no element.
 */
typedef struct tilewise_tensor {
  void* data;
  int32_t dtype;       /* tilewise_dtype */
  int32_t device_kind; /* tilewise_device_kind */
  int32_t device_index;
  uint32_t flags;
  int32_t rank;
  int32_t reserved;
  int64_t shape[TILEWISE_MAX_RANK];
  int64_t stride[TILEWISE_MAX_RANK]; /* in elements; 0 repeats (inputs only); a size-1 dimension's stride is
                                        ignored */
} tilewise_tensor;

/* Row-major view of `rank` <= 4 dimensions. */
TILEWISE_API tilewise_tensor tilewise_tensor_make(void* data, int32_t dtype, int32_t rank,
                                                  const int64_t* shape);
/* View of a DLPack tensor, through a DLManagedTensor* (version 0.x) or DLManagedTensorVersioned* (1.x):
 * byte_offset is added, NULL strides mean row-major, the read-only flag is kept. The view must not outlive
 * the DLPack tensor. */
TILEWISE_API tilewise_code tilewise_tensor_from_dlpack(const void* dl_managed_tensor, tilewise_tensor* out,
                                                       tilewise_error* error);
TILEWISE_API tilewise_code tilewise_tensor_from_dlpack_versioned(const void* dl_managed_tensor_versioned,
                                                                 tilewise_tensor* out, tilewise_error* error);

/* ---- problem: what is asked, nothing about hardware ---------------------------------------------------- */

typedef enum tilewise_direction { TILEWISE_FORWARD = 0, TILEWISE_BACKWARD = 1 } tilewise_direction;

/* Where query i of a sequence stands: p = i + q_offset. */
typedef enum tilewise_position {
  TILEWISE_BOTTOM_RIGHT = 0, /* q_offset = len_kv - len_q: the last query stands at the last key (default) */
  TILEWISE_TOP_LEFT = 1,     /* q_offset = 0 */
  TILEWISE_GIVEN = 2         /* q_offset comes with the call: one number, or int32 [B] */
} tilewise_position;

/* Which optional tensors a call will bring; a plan made without one refuses a call with it. */
typedef enum tilewise_feature {
  TILEWISE_HAS_BIAS = 1 << 0,
  TILEWISE_HAS_MASK = 1 << 1,
  TILEWISE_HAS_Q_LENGTHS = 1 << 2,
  TILEWISE_HAS_KV_LENGTHS = 1 << 3,
  TILEWISE_HAS_KV_STARTS = 1 << 4,
  TILEWISE_HAS_Q_OFFSET = 1 << 5, /* the per-sequence tensor; needs position TILEWISE_GIVEN */
  TILEWISE_HAS_SEGMENT_IDS = 1 << 6,
  TILEWISE_HAS_KV_RANGES = 1 << 7,
  TILEWISE_HAS_ALIBI = 1 << 8,
  TILEWISE_HAS_SINKS = 1 << 9,
  TILEWISE_HAS_LSE = 1 << 10,             /* forward: write lse (backward always reads it) */
  TILEWISE_HAS_DLSE = 1 << 11,            /* backward: a gradient arrives through lse */
  TILEWISE_HAS_DELTA = 1 << 12,           /* backward: rowsum(dout*o) is given instead of o */
  TILEWISE_HAS_CACHE_BATCH_IDX = 1 << 13, /* k and v are slots of a contiguous cache, found by index */
  TILEWISE_HAS_KV_SCALES = 1 << 14        /* k_scales and v_scales; TILEWISE_I8 needs them, _F8E4M3 may */
} tilewise_feature;

/* Upper bounds and options. Fill with tilewise_problem_init, then set what differs. */
typedef struct tilewise_problem {
  uint32_t struct_bytes;
  int32_t direction; /* tilewise_direction */
  int64_t batch;     /* sequences */
  int64_t seqlen_q;  /* the longest sequence, in rows */
  int64_t seqlen_kv;
  int64_t total_q; /* packed: rows of q over all sequences; else 0 */
  int64_t total_kv;
  int64_t heads_q; /* a multiple of heads_kv; query head h reads key head h / (heads_q / heads_kv) */
  int64_t heads_kv;
  int64_t head_dim;                                 /* of q and k, >= 1 */
  int64_t head_dim_v;                               /* of v and o, >= 1 */
  int32_t dtype_q, dtype_k, dtype_v, dtype_o;       /* TILEWISE_F32, _F16 or _BF16; k and v together also */
                                                    /* _F8E4M3 or _I8, forward only */
  int32_t dtype_dout, dtype_dq, dtype_dk, dtype_dv; /* backward; dq, dk, dv may be wider than q */
  int32_t dtype_bias, dtype_mask, dtype_dbias;      /* mask: TILEWISE_BOOL or TILEWISE_BIT */
  int32_t packed_q, packed_kv;                      /* 1: [total, heads, dim] with cu_seqlens */
  int64_t page_size; /* paged k and v: rows of a page, any >= 1; 0 = not paged */
  int64_t max_pages; /* paged: entries of page_table a sequence; seqlen_kv is at most max_pages * page_size */
  int64_t num_pages; /* paged: pages of k and v */
  int64_t cache_slots;   /* with cache_batch_idx: sequences that k and v have room for; else 0 */
  int64_t scale_rows;    /* with k_scales: rows that share a scale; 0 = all of a page, slot or sequence */
  uint32_t features;     /* tilewise_feature bits */
  int64_t bias_shape[4]; /* each 1 or the size of [B, Hq, Sq, Skv] */
  int64_t mask_shape[4];
  int32_t alibi_per_batch; /* slopes are [B, Hq] instead of [Hq] */
  int32_t causal;          /* key <= p; makes window_right 0 */
  int64_t window_left;     /* p - left <= key; -1 = unbounded */
  int64_t window_right;    /* key <= p + right; -1 = unbounded */
  int32_t position;        /* tilewise_position */
  float softmax_scale;     /* NaN = 1/sqrt(head_dim); 0 and negative are legal */
  float softcap;           /* cap * tanh(score / cap); 0 = none */
  float dropout_p;         /* 0 = none; in [0, 1) */
  int32_t wants;           /* backward: tilewise_gradient bits */
  int32_t accumulate;      /* backward: add to dq, dk, dv (which must be fp32) instead of overwriting them */
  int32_t deterministic;   /* backward: the same bits in every run */
  int32_t batch_invariant; /* a row's bits depend on its own sequence only; so deterministic too */
  int32_t alignment; /* bytes that every base and outer stride of q k v o dout dq dk dv is a multiple of */
} tilewise_problem;

typedef enum tilewise_gradient {
  TILEWISE_WANT_DQ = 1,
  TILEWISE_WANT_DK = 2,
  TILEWISE_WANT_DV = 4,
  TILEWISE_WANT_DBIAS = 8,
  TILEWISE_WANT_DSINKS = 16
} tilewise_gradient;

TILEWISE_API void tilewise_problem_init(tilewise_problem* problem);
/* One line: every field that differs from its default. Returns the length that was needed. */
TILEWISE_API size_t tilewise_problem_print(const tilewise_problem* problem, char* text, size_t text_bytes);

/* Every tensor of a call, by its field name; absent ones zeroed (a zeroed struct is a valid start).
 * [B, S..] forms become [total..] where the problem says packed; k and v are [num_pages, page_size, Hkv, D]
 * where it has a page_size, and [cache_slots, Skv, Hkv, D] with cache_batch_idx. Lengths are data, clamped
 * where they are read; those of a paged cache on the CPU are refused instead. */
typedef struct tilewise_tensors {
  tilewise_tensor q;    /* [B, Sq, Hq, D] */
  tilewise_tensor k;    /* [B, Skv, Hkv, D] */
  tilewise_tensor v;    /* [B, Skv, Hkv, Dv] */
  tilewise_tensor o;    /* [B, Sq, Hq, Dv]; forward writes it, backward reads it (or delta) */
  tilewise_tensor lse;  /* f32 [B, Hq, Sq], packed [Hq, total_q]; natural log */
  tilewise_tensor bias; /* f32, f16 or bf16, broadcastable to [B, Hq, Sq, Skv]: 4 dimensions, 1 = repeat */
  tilewise_tensor mask; /* bool or bit, likewise; true = may attend */
  tilewise_tensor q_lengths;  /* i32 [B] */
  tilewise_tensor kv_lengths; /* i32 [B] */
  tilewise_tensor kv_starts;  /* i32 [B] */
  tilewise_tensor q_offset;   /* i32 [B] */
  tilewise_tensor page_table; /* i32 [B, max_pages]: key j is row j % page_size of page [b, j / page_size] */
  tilewise_tensor cache_batch_idx; /* i32 [B]: the slot of each sequence */
  tilewise_tensor k_scales;        /* f32 [blocks, Hkv], with scale_rows [blocks, ceil(rows / scale_rows), */
  tilewise_tensor v_scales;       /* Hkv]: an element of k is what is stored times its scale. blocks: pages */
                                  /* (of page_size rows), cache_slots or B (of Skv rows, also if packed) */
  tilewise_tensor cu_seqlens_q;   /* i32 or i64 [B + 1] */
  tilewise_tensor cu_seqlens_kv;  /* i32 or i64 [B + 1] */
  tilewise_tensor segment_ids_q;  /* i32 [B, Sq], packed [total_q]; a query sees the keys of its own id */
  tilewise_tensor segment_ids_kv; /* i32 [B, Skv], packed [total_kv] */
  tilewise_tensor kv_ranges;     /* i32 [B, Sq, 2], packed [total_q, 2]; a query sees keys in [first, last) */
  tilewise_tensor alibi_slopes;  /* f32 [Hq] or [B, Hq]; adds -slope * |p - key| */
  tilewise_tensor sinks;         /* f32 [Hq]; natural units, unscaled */
  tilewise_tensor dropout_state; /* u64 [2]: seed, offset; or absent and given by value below */
  tilewise_tensor dout;          /* [B, Sq, Hq, Dv] */
  tilewise_tensor dlse;          /* f32, like lse */
  tilewise_tensor delta;         /* f32, like lse: rowsum(dout * o) */
  tilewise_tensor dq;            /* [B, Sq, Hq, D] */
  tilewise_tensor dk;            /* [B, Skv, Hkv, D] */
  tilewise_tensor dv;            /* [B, Skv, Hkv, Dv] */
  tilewise_tensor dbias;         /* bias's shape: summed over what bias repeats over */
  tilewise_tensor dsinks;        /* f32 [Hq] */
  int64_t q_offset_value;        /* position TILEWISE_GIVEN without the q_offset tensor */
  uint64_t dropout_seed;
  uint64_t dropout_offset;
} tilewise_tensors;

#ifdef __cplusplus
}
#endif
#endif /* TILEWISE_C_PROBLEM_H_ */
