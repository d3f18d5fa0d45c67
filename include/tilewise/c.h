/* Tilewise: exact attention, tile by tile. The C99 border; the C++20 headers beside it wrap exactly this.
 *
 * Shapes use the letters B batch, Sq seqlen_q, Skv seqlen_kv, Hq heads_q, Hkv heads_kv, D head_dim, Dv
 * head_dim_v. Every function that can fail returns a tilewise_code and, where `error` is not NULL, writes one
 * sentence (for "no kernel": one line a kernel) into it. Nothing here prints, aborts, throws or keeps global
 * state. */
#ifndef TILEWISE_C_H_
#define TILEWISE_C_H_

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

/* ---- status
 * ---------------------------------------------------------------------------------------------------- */

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

/* ---- tensors
 * --------------------------------------------------------------------------------------------------- */

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

/* ---- problem: what is asked, nothing about hardware
 * ------------------------------------------------------------- */

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

/* ---- context: what owns resources
 * ------------------------------------------------------------------------------- */

typedef struct tilewise_context tilewise_context;

typedef void (*tilewise_task)(void* data, int64_t index, int32_t worker);
/* Runs task(data, i, w) for all i in [0, count), w in [0, workers): never two tasks at once with the same w.
 */
typedef void (*tilewise_parallel_for)(void* user, int64_t count, int32_t workers, tilewise_task task,
                                      void* data);
typedef void (*tilewise_log)(void* user, const char* line);
typedef void* (*tilewise_allocate)(void* user, size_t bytes, size_t alignment); /* NULL = out of memory */
typedef void (*tilewise_release)(void* user, void* data, size_t bytes);

typedef struct tilewise_context_options {
  uint32_t struct_bytes;
  int32_t threads;                    /* 0 = physical cores within the affinity mask and the cgroup's quota */
  tilewise_parallel_for parallel_for; /* NULL = own threads, which sleep when idle */
  void* parallel_for_user;
  tilewise_log log; /* NULL = silent */
  void* log_user;
  tilewise_allocate allocate; /* NULL = aligned_alloc, on huge pages where there are; both or neither */
  tilewise_release release;
  void* allocate_user;
  const char* kernel;      /* NULL, or the kernel that every plan must use */
  const char* tuning_text; /* NULL, or the content of a tuning file for this device */
  int32_t check_data;      /* 1: look at lengths, offsets, pages and ranges and refuse instead of clamping */
                           /* them; on a device the call then waits, and is not legal inside a capture */
  int32_t
      device_kind; /* what tilewise_plan_for_context plans for; 0 = the CPU. tilewise_attention takes the */
  int32_t device_index; /* device of its tensors, whatever stands here */
} tilewise_context_options;

TILEWISE_API void tilewise_context_options_init(tilewise_context_options* options);
TILEWISE_API tilewise_code tilewise_context_create(const tilewise_context_options* options,
                                                   tilewise_context** context, tilewise_error* error);
/* Reads TILEWISE_DEVICE (cpu, cuda, cuda:N), TILEWISE_THREADS, TILEWISE_KERNEL, TILEWISE_TUNING (a file),
 * TILEWISE_CHECK, TILEWISE_LOG=stderr. */
TILEWISE_API tilewise_code tilewise_context_from_environment(tilewise_context** context,
                                                             tilewise_error* error);
/* The same; what no variable sets comes from `defaults`. */
TILEWISE_API tilewise_code tilewise_context_from_environment_over(const tilewise_context_options* defaults,
                                                                  tilewise_context** context,
                                                                  tilewise_error* error);
TILEWISE_API void tilewise_context_destroy(tilewise_context* context);
TILEWISE_API int32_t tilewise_context_threads(const tilewise_context* context);

/* ---- devices and plans
 * -------------------------------------------------------------------------------------------- */

/* What planning knows of a device; made-up ones are legal input to tilewise_plan. */
typedef struct tilewise_device_info {
  uint32_t struct_bytes;
  int32_t kind; /* tilewise_device_kind */
  int32_t index;
  int32_t cores;    /* CPU: physical cores usable; GPU: SMs */
  uint64_t isa;     /* tilewise_isa bits (CPU); compute capability * 10 (GPU) */
  int64_t l1_bytes; /* data cache of one core; never 0 */
  int64_t l2_bytes;
  int64_t l3_bytes;
  int64_t memory_bytes; /* free when asked */
  double core_gflops;   /* fp32 FMA, one core, estimated from clock and ISA */
  double bf16_dots;     /* CPU: rate of its bf16 dot products as a multiple of core_gflops; 0 = not known */
  double memory_gbps;
  int32_t driver_needed; /* GPU: CUDA versions as 1000 * major + 10 * minor; else 0 */
  int32_t driver_found;
  char name[96];
} tilewise_device_info;

typedef enum tilewise_isa {
  TILEWISE_ISA_SCALAR = 1,
  TILEWISE_ISA_AVX2 = 2,   /* with FMA and F16C */
  TILEWISE_ISA_AVX512 = 4, /* F, BW, CD, DQ, VL */
  TILEWISE_ISA_NEON = 8,
  TILEWISE_ISA_AVX512BF16 = 16 /* AVX-512 as above, and BF16's dot products */
} tilewise_isa;

TILEWISE_API tilewise_code tilewise_device_query(int32_t kind, int32_t index, tilewise_device_info* device,
                                                 tilewise_error* error);
/* Waits until all streams of the device are idle, and reports a fault of what ran there: launches return
 * before their work is done. For programs that do not link CUDA themselves. On the CPU there is nothing to
 * wait for. */
TILEWISE_API tilewise_code tilewise_device_wait(int32_t kind, int32_t index, tilewise_error* error);

typedef struct tilewise_limits {
  int64_t max_workspace_bytes; /* -1 = no limit */
  int32_t threads;             /* 0 = the context's */
  const char* kernel;          /* NULL, or force this one */
} tilewise_limits;

/* A value: copy it, compare it, print it, use it from many threads. */
typedef struct tilewise_plan {
  uint32_t struct_bytes;
  int32_t kernel_index;
  tilewise_problem problem;
  int32_t device_kind;
  int32_t device_index;
  int32_t threads;     /* workers that the workspace has room for */
  int32_t tile_m;      /* rows of q a tile */
  int32_t tile_n;      /* rows of k and v a tile */
  int32_t num_splits;  /* key chunks a head is split into; 0: cut on the device, by lengths */
  int32_t from_tuning; /* 1: a measured line chose the kernel; 0: the cost model */
  int64_t workspace_bytes;
  double predicted_ms;
  double predicted_bytes; /* moved to and from memory */
  char kernel[96];
} tilewise_plan;

/* Pure: the same problem, device, limits and tuning text give the same plan. */
TILEWISE_API tilewise_code tilewise_plan_make(const tilewise_problem* problem,
                                              const tilewise_device_info* device,
                                              const tilewise_limits* limits, const char* tuning_text,
                                              tilewise_plan* plan, tilewise_error* error);
/* The same for the context's own device, limits and tuning. */
TILEWISE_API tilewise_code tilewise_plan_for_context(const tilewise_context* context,
                                                     const tilewise_problem* problem,
                                                     const tilewise_limits* limits, tilewise_plan* plan,
                                                     tilewise_error* error);
/* One line a kernel: rank, predicted time, bytes and workspace, or the rule that refused it. Returns the
 * length needed. */
TILEWISE_API size_t tilewise_plan_explain(const tilewise_problem* problem, const tilewise_device_info* device,
                                          const tilewise_limits* limits, const char* tuning_text, char* text,
                                          size_t text_bytes);
TILEWISE_API size_t tilewise_plan_print(const tilewise_plan* plan, char* text, size_t text_bytes);
TILEWISE_API int tilewise_plan_equal(const tilewise_plan* a, const tilewise_plan* b);

/* ---- running
 * ------------------------------------------------------------------------------------------------------ */

/* Caller's memory, 256-byte aligned. Its first TILEWISE_CONTROL_BYTES must be zero before the first use;
 * every call leaves them zero. The rest is scratch. One call at a time per workspace; a second one is
 * refused on the CPU, and on a CUDA device must come later in the same stream. */
#define TILEWISE_CONTROL_BYTES 256
#define TILEWISE_WORKSPACE_ALIGNMENT 256
typedef struct tilewise_workspace {
  void* data;
  int64_t bytes;
} tilewise_workspace;

/* A workspace of the plan's size on the plan's device, its control block zeroed; for callers who have no
 * memory of their own there. */
TILEWISE_API tilewise_code tilewise_workspace_allocate(const tilewise_plan* plan,
                                                       tilewise_workspace* workspace, tilewise_error* error);
TILEWISE_API void tilewise_workspace_release(const tilewise_plan* plan, tilewise_workspace workspace);

/* Loads kernels, sets limits, starts threads: what must not happen inside a timed or captured call. */
TILEWISE_API tilewise_code tilewise_prepare(tilewise_context* context, const tilewise_plan* plan,
                                            tilewise_error* error);
/* No allocation, no decision: checks the tensors against the plan and launches. `stream` is NULL on the CPU,
 * and a cudaStream_t on a CUDA device: the call returns when the work is enqueued, may be captured in a
 * graph, and reads lengths and offsets on the device, where they are clamped. */
TILEWISE_API tilewise_code tilewise_forward(tilewise_context* context, const tilewise_plan* plan,
                                            const tilewise_tensors* tensors, tilewise_workspace workspace,
                                            void* stream, tilewise_error* error);
TILEWISE_API tilewise_code tilewise_backward(tilewise_context* context, const tilewise_plan* plan,
                                             const tilewise_tensors* tensors, tilewise_workspace workspace,
                                             void* stream, tilewise_error* error);

/* One call: fills sizes, dtypes and features of `options` from the tensors, takes the plan from the context's
 * cache, owns the workspace. `options` carries direction, causal, windows, position, scale, softcap, dropout
 * and flags, and seqlen_q/seqlen_kv where packed (the longest sequence; 0 = read cu_seqlens). */
TILEWISE_API tilewise_code tilewise_attention(tilewise_context* context, const tilewise_problem* options,
                                              const tilewise_tensors* tensors, void* stream,
                                              tilewise_error* error);
/* What tilewise_attention derives: for callers who plan by hand from tensors. Inputs that the call would
 * refuse are refused; outputs may be absent. */
TILEWISE_API tilewise_code tilewise_problem_from_tensors(const tilewise_problem* options,
                                                         const tilewise_tensors* tensors,
                                                         tilewise_problem* problem, tilewise_error* error);

/* Folds a part into (o, lse): softmax over the union of both key sets. o, o_part [B, Sq, Hq, Dv] (or packed
 * [total, Hq, Dv]); lse, lse_part f32 [B, Hq, Sq] (packed [Hq, total]). A part with lse -inf changes nothing.
 */
TILEWISE_API tilewise_code tilewise_merge(tilewise_context* context, const tilewise_tensor* o,
                                          const tilewise_tensor* lse, const tilewise_tensor* o_part,
                                          const tilewise_tensor* lse_part, void* stream,
                                          tilewise_error* error);

/* New rows of k and v for a cache: row i of sequence b becomes key starts[b] + i, in pages, in a slot, or in
 * the sequence's own place. Storage dtypes of rows and cache may differ. */
typedef struct tilewise_append {
  uint32_t struct_bytes;
  int32_t rotary_interleaved; /* pairs (2i, 2i+1); 0 = half-split, pairs (i, i + rotary_dim/2) */
  tilewise_tensor k_new;      /* [B, N, Hkv, D] */
  tilewise_tensor v_new;      /* [B, N, Hkv, Dv] */
  tilewise_tensor starts;     /* i32 [B]: keys that the sequence has already */
  tilewise_tensor lengths;    /* i32 [B]: rows of the N that are new keys; absent = all */
  tilewise_tensor
      rotary_cos; /* [positions, rotary_dim/2], with rotary_sin: k is turned by its position's angles on */
  tilewise_tensor rotary_sin; /* the way; elements past rotary_dim are copied. Absent = k as it is */
  tilewise_tensor k; /* [B, Skv, Hkv, D], [cache_slots, Skv, Hkv, D] or [num_pages, page_size, Hkv, D] */
  tilewise_tensor v; /* likewise, Dv */
  tilewise_tensor page_table;      /* i32 [B, max_pages]: k and v are paged */
  tilewise_tensor cache_batch_idx; /* i32 [B]: k and v are slots */
  tilewise_tensor k_scales; /* of k and v in TILEWISE_I8 or _F8E4M3, as in tilewise_tensors: rows are */
  tilewise_tensor v_scales; /* divided by them, rounded to nearest and held within the largest */
  int64_t scale_rows;       /* as in tilewise_problem */
  int32_t
      write_scales; /* 1, with scale_rows 1: a new row's scale is its largest magnitude / 127 (i8) or 448 */
                    /* (f8e4m3), written too; 0: scales are read. Those of other rows stay either way */
  int32_t reserved;
} tilewise_append;

TILEWISE_API void tilewise_append_init(tilewise_append* append);
/* Writes the rows and nothing else. Host tensors: refused, with the cache untouched, are a place that is not
 * there and two new rows with one place. Device tensors, in the order of `stream`: rows that would end
 * outside the cache are left out; a context with check_data looks first and refuses as on the host. */
TILEWISE_API tilewise_code tilewise_cache_append(tilewise_context* context, const tilewise_append* append,
                                                 void* stream, tilewise_error* error);

/* tilewise_cache_append, then tilewise_forward over the same cache: one call, in which nothing is written
 * where either is refused. `tensors` count the new rows too, as kv_lengths of starts + lengths do. */
TILEWISE_API tilewise_code tilewise_append_forward(tilewise_context* context, const tilewise_plan* plan,
                                                   const tilewise_append* append,
                                                   const tilewise_tensors* tensors,
                                                   tilewise_workspace workspace, void* stream,
                                                   tilewise_error* error);

/* The same in the one-call form: tilewise_cache_append, then tilewise_attention over the same cache. */
TILEWISE_API tilewise_code tilewise_append_attention(tilewise_context* context, const tilewise_append* append,
                                                     const tilewise_problem* options,
                                                     const tilewise_tensors* tensors, void* stream,
                                                     tilewise_error* error);

/* Exact rows of P (after softmax, before dropout), for looking: rows i32 [R], for every batch and head, into
 * weights f32 [B, Hq, R, Skv]; O(R * Skv) memory. Uses q, k and every mask and score tensor of `tensors`;
 * those of a device are copied to the host, after all of its work. */
TILEWISE_API tilewise_code tilewise_attention_weights(tilewise_context* context,
                                                      const tilewise_problem* options,
                                                      const tilewise_tensors* tensors,
                                                      const tilewise_tensor* rows,
                                                      const tilewise_tensor* weights, tilewise_error* error);
/* keep(seed, offset, batch, head, row, key) of the dropout mask, and the probability it uses (p to 1/65536).
 */
TILEWISE_API int tilewise_dropout_keep(uint64_t seed, uint64_t offset, int64_t batch, int64_t head,
                                       int64_t row, int64_t key, float dropout_p);

#ifdef __cplusplus
}
#endif
#endif /* TILEWISE_C_H_ */
