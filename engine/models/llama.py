"""What a Llama-family decoder answers: logits from tokens, over a paged KV pool, in plain torch."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from engine.models.config import ModelConfig
from engine.models.paged_attention import Span, UnitBatch, attend, plan_units, pool_entries
from engine.models.rotary import rotary_table, rotate
from engine.models.tiling import Task, Tiling, Workers, split_columns


@dataclass(frozen=True, slots=True)
class Pass:
    """The tokens of one forward; every position is written to the pool before any is read."""

    tokens: torch.Tensor
    """[tokens] int64, on the CPU, as are positions and slots."""
    positions: torch.Tensor
    slots: torch.Tensor
    """[tokens] int64: where this token's key and value go in the pool."""
    spans: tuple[Span, ...]
    wanted: tuple[int, ...]
    """Rows whose logits are asked for."""


class Llama:
    """The forward of one model; stateless but for its weights. Weights stay where the loader put them.

    The residual stream is float32 whatever the dtype; matrix products run in the dtype, attention,
    norms and logits in float32.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: Mapping[str, torch.Tensor],
        *,
        tiling: Tiling,
        workers: Workers,
        positions: int,
    ) -> None:
        self._config = config
        self._tiling = tiling
        self._workers = workers
        self._weights = weights
        self._embedding = weights["model.embed_tokens.weight"]
        self._head = self._embedding if config.tie_word_embeddings else weights["lm_head.weight"]
        self._device, self._dtype = self._embedding.device, self._embedding.dtype
        cos, sin = rotary_table(config, positions)
        self._cos, self._sin = cos.to(self._device), sin.to(self._device)

    def forward(self, step: Pass, pool: torch.Tensor) -> torch.Tensor:
        """Logits [len(step.wanted), vocab_size] float32; writes keys and values into pool.

        pool is [layers, 2, kv_heads, slots, head_dim].
        """
        count = len(step.tokens)
        kv_heads, slot_count = self._config.kv_heads, pool.shape[3]
        units = plan_units(step.spans, kv_heads, slot_count, self._tiling, self._device)
        entries = pool_entries(step.slots, kv_heads, slot_count).to(self._device)
        padding = -count % self._tiling.linear_rows
        positions = functional.pad(step.positions, (0, padding)).to(self._device)
        cos, sin = self._cos[positions], self._sin[positions]
        tokens = functional.pad(step.tokens, (0, padding)).to(self._device)
        hidden = self._embedding[tokens].float()
        for layer in range(self._config.layers):
            query = self._project(layer, hidden, cos, sin, entries, pool[layer])
            mixed = self._attend(query, pool[layer], units)
            hidden += self._linear(mixed, f"model.layers.{layer}.self_attn.o_proj")
            self._feed_forward(layer, hidden)
        return self._logits(hidden, step.wanted)

    def _project(
        self,
        layer: int,
        hidden: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        entries: torch.Tensor,
        pool: torch.Tensor,
    ) -> torch.Tensor:
        """Queries [tokens, heads, head_dim] float32; keys and values go to the pool."""
        config, name = self._config, f"model.layers.{layer}.self_attn"
        normed = self._norm(hidden, f"model.layers.{layer}.input_layernorm.weight")
        raw_query, raw_key, value = self._linears(normed, [f"{name}.{kind}_proj" for kind in "qkv"])
        query = raw_query.view(-1, config.heads, config.head_dim)
        key = raw_key.view(-1, config.kv_heads, config.head_dim)
        if config.qk_norm:
            query = self._norm(query, f"{name}.q_norm.weight")
            key = self._norm(key, f"{name}.k_norm.weight")
        key = self._by_tile(lambda part: rotate(key[part], cos[part], sin[part]).to(self._dtype), len(key))
        value = value.view(-1, config.kv_heads, config.head_dim)
        for part, fresh in zip(pool, (key, value), strict=True):
            ranked = fresh[: len(entries) // config.kv_heads].transpose(0, 1).reshape(-1, config.head_dim)
            part.view(-1, config.head_dim).index_copy_(0, entries, ranked)
        return self._by_tile(lambda part: rotate(query[part], cos[part], sin[part]), len(query))

    def _attend(self, query: torch.Tensor, pool: torch.Tensor, units: Sequence[UnitBatch]) -> torch.Tensor:
        """[tokens, heads * head_dim] in the model's dtype."""
        mixed = query.new_zeros((len(query), query.shape[1] * query.shape[2]))
        scale = self._config.head_dim**-0.5

        def task(batch: UnitBatch) -> None:
            answer = attend(query, pool[0], pool[1], batch, scale, self._tiling)
            mixed[batch.rows[batch.real]] = answer[batch.real]

        self._workers.run([_bound(task, batch) for batch in units])
        return mixed.to(self._dtype)

    def _feed_forward(self, layer: int, hidden: torch.Tensor) -> None:
        name = f"model.layers.{layer}"
        normed = self._norm(hidden, f"{name}.post_attention_layernorm.weight")
        gate, up = self._linears(normed, [f"{name}.mlp.gate_proj", f"{name}.mlp.up_proj"])
        gated = self._by_tile(lambda part: functional.silu(gate[part]) * up[part], len(gate))
        hidden += self._linear(gated, f"{name}.mlp.down_proj")

    def _logits(self, hidden: torch.Tensor, wanted: Sequence[int]) -> torch.Tensor:
        """In float32: rounded to bfloat16, the likeliest tokens would often tie."""
        if not wanted:
            return hidden.new_zeros((0, self._config.vocab_size))
        rows = [*wanted, *[wanted[0]] * (-len(wanted) % self._tiling.linear_rows)]
        picked = hidden[torch.tensor(rows, device=self._device)]
        normed = self._norm(picked, "model.norm.weight").float()
        return self._product(normed, [(self._head, None)])[0][: len(wanted)]

    def _norm(self, values: torch.Tensor, name: str) -> torch.Tensor:
        """RMSNorm over the last dimension (arXiv:1910.07467, eq. 4), in float32, then the model's dtype."""
        weight, epsilon = self._weights[name], self._config.rms_norm_eps

        def normed(part: slice) -> torch.Tensor:
            wide = values[part].float()
            scale = torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + epsilon)
            return (wide * scale).to(self._dtype) * weight

        return self._by_tile(normed, len(values))

    def _linear(self, values: torch.Tensor, name: str) -> torch.Tensor:
        return self._linears(values, [name])[0]

    def _linears(self, values: torch.Tensor, names: Sequence[str]) -> list[torch.Tensor]:
        """Several products of the same rows, in one stage."""
        return self._product(
            values, [(self._weights[f"{name}.weight"], self._weights.get(f"{name}.bias")) for name in names]
        )

    def _product(
        self, values: torch.Tensor, matrices: Sequence[tuple[torch.Tensor, torch.Tensor | None]]
    ) -> list[torch.Tensor]:
        """values [tokens, in] times each matrix [out, in]; a matrix of another dtype is widened by pieces."""
        answers = [values.new_empty((len(values), len(matrix))) for matrix, _ in matrices]

        def task(answer: torch.Tensor, matrix: torch.Tensor, bias: torch.Tensor | None) -> None:
            wide = matrix.to(values.dtype)
            for part in self._tiles(len(values)):
                answer[part] = functional.linear(values[part], wide, bias)

        tasks = [
            _bound(
                task,
                answer[:, first:last],
                matrix[first:last],
                None if bias is None else bias[first:last],
            )
            for answer, (matrix, bias) in zip(answers, matrices, strict=True)
            for first, last in split_columns(len(matrix), self._tiling)
        ]
        self._workers.run(tasks)
        return answers

    def _by_tile(self, compute: Callable[[slice], torch.Tensor], rows: int) -> torch.Tensor:
        """Row-wise work, one fixed-shape tile of rows at a time."""
        tiles = self._tiles(rows)
        parts: list[torch.Tensor | None] = [None] * len(tiles)

        def task(index: int) -> None:
            parts[index] = compute(tiles[index])

        self._workers.run([_bound(task, index) for index in range(len(tiles))])
        return torch.cat([part for part in parts if part is not None])

    def _tiles(self, rows: int) -> list[slice]:
        size = self._tiling.linear_rows
        return [slice(first, first + size) for first in range(0, rows, size)]


def _bound(task: Callable[..., None], *arguments: object) -> Task:
    return lambda: task(*arguments)
