"""Asks a running Baton one question and prints the answer as it comes."""

import http.client
import json
import sys
from collections.abc import Iterator
from urllib.parse import urlsplit


class ChatError(Exception):
    """One clear line: not reachable, or what the server answered."""


def stream_answer(
    url: str, question: str, *, model: str = "", key: str = "none", max_tokens: int = 256
) -> Iterator[str]:
    """Pieces of text of the greedy answer, in order. Raises ChatError."""
    connection = _connection(url)
    messages = [{"role": "user", "content": question}]
    body = {"model": model or _first_model(connection, url, key), "messages": messages, "stream": True}
    body |= {"temperature": 0, "max_tokens": max_tokens}
    headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        response = connection.getresponse()
        if response.status != 200:
            raise ChatError(_error_message(response.read(), response.status))
        yield from _texts(response)
    except (OSError, http.client.HTTPException) as error:
        raise ChatError(f"{url}: {error}") from None
    finally:
        connection.close()


def print_answer(
    url: str, question: str, *, model: str = "", key: str = "none", max_tokens: int = 256
) -> None:
    print(f"> {question}", flush=True)
    for piece in stream_answer(url, question, model=model, key=key, max_tokens=max_tokens):
        sys.stdout.write(piece)
        sys.stdout.flush()
    print(flush=True)


def _connection(url: str) -> http.client.HTTPConnection:
    """Not connected yet. Raises ChatError where the URL is none of ours."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or 80
    except ValueError as error:
        raise ChatError(f"{url}: {error}") from None
    if parts.scheme != "http" or not host:
        raise ChatError(f"{url}: must be like http://127.0.0.1:8000")
    return http.client.HTTPConnection(host, port, timeout=120)


def _first_model(connection: http.client.HTTPConnection, url: str, key: str) -> str:
    try:
        connection.request("GET", "/v1/models", headers={"authorization": f"Bearer {key}"})
        response = connection.getresponse()
        content = response.read()
    except OSError as error:
        raise ChatError(f"{url}: {error.strerror or error}") from None
    if response.status != 200:
        raise ChatError(_error_message(content, response.status))
    models = json.loads(content)["data"]
    if not models:
        raise ChatError(f"{url}: no model is served now")
    return str(models[0]["id"])


def _texts(response: http.client.HTTPResponse) -> Iterator[str]:
    for line in response:
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            return
        chunk = json.loads(data)
        if "error" in chunk:
            raise ChatError(chunk["error"]["message"])
        for choice in chunk["choices"]:
            if piece := choice["delta"].get("content"):
                yield piece
    raise ChatError("the stream ended before the answer did")


def _error_message(content: bytes, status: int) -> str:
    try:
        return str(json.loads(content)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"HTTP {status}"
