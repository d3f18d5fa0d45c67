/* Causal attention from C99: plan once, bring the memory, run as often as wanted.
 *
 *   cc -std=c99 attend.c $(pkg-config --cflags --libs tilewise) -o attend && ./attend */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tilewise/c.h>
#include <time.h>

enum { kBatch = 1, kSeqlen = 512, kHeads = 8, kHeadDim = 64, kRepeats = 5 };

/* Uniform in (-1, 1), the same on every machine. */
static float random_number(void) {
  static unsigned state = 1;
  state = state * 1664525u + 1013904223u;
  return (float)(state >> 8) / 8388608.0f - 1.0f;
}

/* A tensor [batch, seqlen, heads, head_dim], row-major. */
static tilewise_tensor make_tensor(void) {
  const int64_t shape[4] = {kBatch, kSeqlen, kHeads, kHeadDim};
  const size_t count = (size_t)kBatch * kSeqlen * kHeads * kHeadDim;
  float* data = malloc(count * sizeof(float));
  size_t i;
  if (data == NULL) exit(1);
  for (i = 0; i < count; ++i) data[i] = random_number();
  return tilewise_tensor_make(data, TILEWISE_F32, 4, shape);
}

/* Row `row` of head `head`. */
static float* row_of(tilewise_tensor t, int64_t row, int64_t head) {
  return (float*)t.data + row * t.stride[1] + head * t.stride[2];
}

/* 256-byte aligned memory for a plan; only its first TILEWISE_CONTROL_BYTES must be zero. */
static tilewise_workspace make_workspace(int64_t bytes, void** memory) {
  tilewise_workspace workspace;
  *memory = malloc((size_t)bytes + TILEWISE_WORKSPACE_ALIGNMENT);
  if (*memory == NULL) exit(1);
  workspace.data = (void*)(((uintptr_t)*memory + TILEWISE_WORKSPACE_ALIGNMENT - 1) /
                           TILEWISE_WORKSPACE_ALIGNMENT * TILEWISE_WORKSPACE_ALIGNMENT);
  workspace.bytes = bytes;
  memset(workspace.data, 0, TILEWISE_CONTROL_BYTES);
  return workspace;
}

static void check(tilewise_code code, const tilewise_error* error) {
  if (code == TILEWISE_OK) return;
  fprintf(stderr, "tilewise: %s\n", error->message);
  exit(1);
}

static float absolute(float x) { return x < 0 ? -x : x; }

int main(void) {
  tilewise_error error;
  tilewise_context* context = NULL;
  tilewise_problem options, problem;
  tilewise_tensors t;
  tilewise_plan plan;
  tilewise_workspace workspace;
  void* memory;
  char text[512];
  float worst_sum = 0, worst_first = 0;
  double best = 1e30;
  int64_t row, head, d;
  int repeat;

  memset(&t, 0, sizeof t); /* absent tensors are zero */
  t.q = make_tensor();
  t.k = make_tensor();
  t.v = make_tensor();
  t.o = make_tensor();
  /* The last column of v is 1, so that the last column of o is the sum of a row of P. */
  for (row = 0; row < kSeqlen; ++row) {
    for (head = 0; head < kHeads; ++head) row_of(t.v, row, head)[kHeadDim - 1] = 1.0f;
  }

  check(tilewise_context_create(NULL, &context, &error), &error);
  tilewise_problem_init(&options);
  options.causal = 1;
  check(tilewise_problem_from_tensors(&options, &t, &problem, &error), &error);
  check(tilewise_plan_for_context(context, &problem, NULL, &plan, &error), &error);
  tilewise_plan_print(&plan, text, sizeof text);
  printf("%s\n", text);

  workspace = make_workspace(plan.workspace_bytes, &memory);
  check(tilewise_prepare(context, &plan, &error), &error);
  for (repeat = 0; repeat < kRepeats; ++repeat) {
    const clock_t start = clock();
    check(tilewise_forward(context, &plan, &t, workspace, NULL, &error), &error);
    if ((double)(clock() - start) / CLOCKS_PER_SEC < best) best = (double)(clock() - start) / CLOCKS_PER_SEC;
  }

  for (head = 0; head < kHeads; ++head) {
    for (row = 0; row < kSeqlen; ++row) {
      const float off = absolute(row_of(t.o, row, head)[kHeadDim - 1] - 1.0f);
      if (off > worst_sum) worst_sum = off;
    }
    for (d = 0; d < kHeadDim; ++d) { /* the first query sees the first key alone */
      const float off = absolute(row_of(t.o, 0, head)[d] - row_of(t.v, 0, head)[d]);
      if (off > worst_first) worst_first = off;
    }
  }
  printf("%.2f ms of processor time; rows of P sum to 1 within %.1e; the first row is v's within %.1e\n",
         best * 1e3, (double)worst_sum, (double)worst_first);

  tilewise_context_destroy(context);
  free(memory);
  free(t.q.data);
  free(t.k.data);
  free(t.v.data);
  free(t.o.data);
  return worst_sum < 1e-5f && worst_first < 1e-6f ? 0 : 1;
}
