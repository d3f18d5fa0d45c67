/* Tilewise: exact attention, tile by tile. The C99 border; the C++20 headers beside it wrap exactly this.
 * What is asked, tilewise_tensor, tilewise_problem and tilewise_tensors, stands in c_problem.h; who runs it
 * and how, here.
 *
 * Every function that can fail returns a tilewise_code and, where `error` is not NULL, writes one sentence
 * (for "no kernel": one line a kernel) into it. Nothing here prints, aborts, throws or keeps global state. */
#ifndef TILEWISE_C_H_
#define TILEWISE_C_H_

#include "tilewise/c_problem.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- context: what owns resources ---------------------------------------------------------------------- */

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

/* ---- devices and plans --------------------------------------------------------------------------------- */

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

/* ---- running ------------------------------------------------------------------------------------------- */

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
 * there and two new rows with one place. Device tensors, in the order of `stream`: rows for which the
 * cache has no place (past its end, in a page or slot that is not there) are left out; a context with
 * check_data looks first and refuses as on the host. */
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
