#!/usr/bin/env bash
# Regenerates the committed stubs beside the .proto files; `make proto` runs it, a test proves them current.
set -euo pipefail
cd "$(dirname "$0")/.."
python="${PYTHON:-.venv/bin/python}"
out="${1:-.}"
exec "$python" -m grpc_tools.protoc -I. --python_out="$out" --pyi_out="$out" --grpc_python_out="$out" proto/*.proto
