"""Whether each supported architecture answers what transformers answers."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from tests.reference.small_models import EVERYTHING, VOCABULARY, folder_backend, row, step

SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"tie_word_embeddings": True}),
    "llama untied, no grouping": ("Llama", {"num_key_value_heads": 4, "tie_word_embeddings": False}),
    "llama, one KV head, wide heads": ("Llama", {"num_key_value_heads": 1, "head_dim": 32}),
    "llama 3 rope scaling": ("Llama", {"rope_parameters": LLAMA3}),
    "mistral": ("Mistral", {"sliding_window": None, "tie_word_embeddings": False}),
    "mistral, idle window": ("Mistral", {"sliding_window": 512}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": False}),
    "qwen3": ("Qwen3", {"head_dim": 24, "tie_word_embeddings": True}),
}
LENGTHS = (1, 5, 64, 65, 200)


@pytest.mark.parametrize("name", CASES)
def test_float32_logits_equal_transformers(name: str, tmp_path: Path) -> None:
    expected = _transformers(name, tmp_path)
    found = _ours(tmp_path, "float32")
    assert float((found - expected).abs().max()) < 2e-4
    assert float(expected.std()) > 0.5, "a flat distribution would prove nothing"


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
def test_bfloat16_logits_are_near_transformers(name: str, tmp_path: Path) -> None:
    expected = _transformers(name, tmp_path)
    found = _ours(tmp_path, "bfloat16")
    assert float((found - expected).abs().mean()) < 0.05 * float(expected.std())


def _tokens(length: int) -> list[int]:
    generator = torch.Generator().manual_seed(length)
    return torch.randint(0, VOCABULARY, (length,), generator=generator).tolist()


def _transformers(name: str, folder: Path) -> torch.Tensor:
    """[lengths, vocabulary] log probabilities after each prompt; the model is left in folder."""
    family, changes = CASES[name]
    torch.manual_seed(3)
    config = getattr(transformers, f"{family}Config")(**{**SHAPE, **changes})
    model = getattr(transformers, f"{family}ForCausalLM")(config).to(torch.float32)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if parameter.dim() == 1:  # norms start at one and biases at zero, which would hide both
                parameter.add_(torch.randn_like(parameter) * (0.5 if "bias" in parameter_name else 0.2))
    model.save_pretrained(folder)
    with torch.inference_mode():
        logits = [model(torch.tensor([_tokens(length)])).logits[0, -1] for length in LENGTHS]
    return torch.stack(logits).log_softmax(-1)


def _ours(folder: Path, dtype: str) -> torch.Tensor:
    backend = folder_backend(folder, dtype=dtype, blocks=80, threads=1)
    rows = [
        row(_tokens(length), 0, range(index * 16, index * 16 + 16), EVERYTHING)
        for index, length in enumerate(LENGTHS)
    ]
    result = backend.execute(step(*rows))
    backend.close()
    answer = torch.empty(len(LENGTHS), VOCABULARY)
    for index, (drawn,) in enumerate(result.sampled):
        for token, logprob in drawn.top:
            answer[index, token] = logprob
    return answer
