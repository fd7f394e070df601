"""A model of random weights is a model: for us, for transformers, and with its tokenizer."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from bench.random_llama import config_for, count, main
from engine.models.checkpoint import read_json
from engine.models.store import DEFAULT_MODEL, resolve
from engine.models.weights import load_weights


@pytest.mark.parametrize("parameters", [1.0e9, 1.2e9, 2.0e9])
def test_it_is_as_large_as_asked(parameters: float) -> None:
    config = config_for(parameters, read_json(resolve(DEFAULT_MODEL).path / "config.json"))
    assert count(config) == pytest.approx(parameters, rel=0.04)
    assert config["num_attention_heads"] == 4 * config["num_key_value_heads"]
    assert 10 <= config["num_hidden_layers"] <= 24


def test_others_read_the_same_weights(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "tiny"
    assert main([str(folder), "--params", "1e6", "--json"]) == 0
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (said["bench"], said["config"]["num_hidden_layers"]) == ("random_llama", 1)
    ours = load_weights(resolve(str(folder)).path, "bfloat16")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    theirs = model.state_dict()
    assert sorted(theirs) == sorted(ours)
    assert all(theirs[name].equal(ours[name]) for name in ours)
    assert sum(parameter.numel() for parameter in model.parameters()) == said["parameters"]
    wide = ours["lm_head.weight"].float()
    assert float(wide.std()) == pytest.approx(0.02, rel=0.01)
    assert AutoTokenizer.from_pretrained(folder).chat_template


def test_what_is_there_is_not_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    for taken in (tmp_path, tmp_path / "file"):
        assert main([str(taken), "--params", "1e6"]) == 1
        said = capsys.readouterr().err.splitlines()[-1]
        assert said.startswith(f"bench.random_llama: {taken}: is there")
    with pytest.raises(SystemExit):
        main([str(tmp_path / "other"), "--params", "0"])
    assert "--params" in capsys.readouterr().err.splitlines()[-1]
