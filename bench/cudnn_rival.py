"""cuDNN's attention by its own front end, which takes what PyTorch's operator does not: windows, and caches in pages.

gpu_bench.py and gpu_decode.py time it under the name "cudnn_own". It needs the package nvidia-cudnn-frontend
(`pip install nvidia-cudnn-frontend`) beside PyTorch, whose libcudnn it takes; missing() says what is not there.
"""

import functools

NAME = "cudnn_own"


@functools.cache
def _package():
    """The package and "", or None and what is missing."""
    try:
        import cudnn
        cudnn.backend_version()
    except (ImportError, RuntimeError) as e:
        return None, f"no nvidia-cudnn-frontend ({e})"
    return cudnn, ""


def missing():
    return _package()[1]


def versions():
    cudnn = _package()[0]
    return f"cuDNN's front end {cudnn.__version__}" if cudnn else missing()


@functools.cache
def _handle(device):
    return _package()[0].create_handle()


class Attention:
    """A graph of one attention call on tensors [batch, heads, rows, dim] of any strides; called with q, k, v it returns o.

    `window`: keys to the left that a query sees besides its own, -1 for all; `causal` is bottom-right. `lengths` [batch] int32 are
    the sequences' rows of keys. With `table` [batch, pages] int32, k and v are pages [pages, heads, page_size, dim] and `rows_kv` the
    longest sequence. RuntimeError says what cuDNN refuses. `plan` counts from the heuristics' first.
    """

    def __init__(self, torch, q, k, v, causal=False, window=-1, lengths=None, table=None, rows_kv=0, plan=0):
        cudnn = self.cudnn = _package()[0]
        if not cudnn:
            raise RuntimeError(missing())
        self.torch, self.handle = torch, _handle(q.device.index)
        of = {torch.bfloat16: cudnn.data_type.BFLOAT16, torch.float16: cudnn.data_type.HALF}
        if q.dtype not in of:
            raise RuntimeError(f"cuDNN's attention has no {q.dtype}")
        batch, heads, rows, _ = q.shape
        self.o = torch.empty(batch, rows, heads, v.shape[-1], device=q.device, dtype=q.dtype).transpose(1, 2)
        try:
            self._build(q, k, v, of[q.dtype], causal, window, lengths, table, rows_kv, plan)
        except cudnn.cudnnGraphNotSupportedError as e:
            raise RuntimeError(f"cuDNN: {e}") from e

    def _build(self, q, k, v, dtype, causal, window, lengths, table, rows_kv, plan):
        cudnn, torch = self.cudnn, self.torch
        graph = self.graph = cudnn.pygraph(io_data_type=dtype, intermediate_data_type=cudnn.data_type.FLOAT,
                                           compute_data_type=cudnn.data_type.FLOAT, handle=self.handle)
        tensor = lambda name, x, dtype=dtype: graph.tensor(name=name, dim=list(x.shape), stride=list(x.stride()), data_type=dtype)
        self.names = [tensor(name, x) for name, x in zip("qkv", (q, k, v))]
        self.given = {}

        def whole_numbers(name, x):
            made = tensor(name, x, cudnn.data_type.INT32)
            self.given[made] = x
            return made

        options = {}
        if causal:
            options |= {"diagonal_alignment": cudnn.diagonal_alignment.BOTTOM_RIGHT, "diagonal_band_right_bound": 0}
        if window >= 0:
            options["diagonal_band_left_bound"] = window + 1  # as cuDNN counts, the query's own key is among them
        if lengths is not None:
            of_q = torch.full_like(lengths, q.shape[2])
            options |= {"use_padding_mask": True, "seq_len_q": whole_numbers("rows_q", of_q.view(-1, 1, 1, 1)),
                        "seq_len_kv": whole_numbers("rows_kv", lengths.view(-1, 1, 1, 1))}
        if table is not None:
            pages = table.view(table.shape[0], 1, table.shape[1], 1)
            options |= {"paged_attention_k_table": whole_numbers("pages_k", pages), "paged_attention_max_seq_len_kv": rows_kv,
                        "paged_attention_v_table": whole_numbers("pages_v", pages)}
        out, _ = graph.sdpa(name="attention", q=self.names[0], k=self.names[1], v=self.names[2], generate_stats=False,
                            attn_scale=q.shape[-1] ** -0.5, **options)
        out.set_output(True).set_dim(list(self.o.shape)).set_stride(list(self.o.stride())).set_data_type(dtype)
        self.given[out] = self.o
        graph.validate()
        graph.build_operation_graph()
        graph.create_execution_plans([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
        graph.check_support()
        self.plan, self.plans = plan, graph.get_execution_plan_count()
        graph.build_plan_at_index(plan)
        bytes_needed = graph.get_workspace_size_plan_at_index(plan)
        self.workspace = torch.empty(max(1, bytes_needed), device=q.device, dtype=torch.uint8)

    def __call__(self, *qkv):
        self.cudnn.set_stream(handle=self.handle, stream=self.torch.cuda.current_stream().cuda_stream)
        self.graph.execute_plan_at_index(self.given | dict(zip(self.names, qkv)), self.workspace, self.plan, handle=self.handle)
        return self.o
