#!/usr/bin/env bash
# Installs the official OpenAI clients for `make test-clients` into build/clients, pinned; what is there stays.
# Needs Python 3.9 or later with venv, Node 20 or later with npm.
set -euo pipefail
cd "$(dirname "$0")/.."
for tool in python3 node npm; do
	command -v "$tool" >/dev/null || { echo "clients: $tool is needed" >&2; exit 1; }
done
dir=build/clients
mkdir -p "$dir/js"
if ! cmp -s test/clients/python/requirements.txt "$dir/venv/installed"; then
	echo "clients: installing Python's" >&2
	rm -rf "$dir/venv"
	python3 -m venv "$dir/venv"
	"$dir/venv/bin/python" -m pip install -q --disable-pip-version-check -r test/clients/python/requirements.txt
	cp test/clients/python/requirements.txt "$dir/venv/installed"
fi
if ! cmp -s test/clients/js/package-lock.json "$dir/js/installed"; then
	echo "clients: installing JavaScript's" >&2
	rm -rf "$dir/js"
	mkdir -p "$dir/js"
	cp test/clients/js/package.json test/clients/js/package-lock.json "$dir/js/"
	(cd "$dir/js" && npm ci --silent --no-audit --no-fund --ignore-scripts)
	cp test/clients/js/package-lock.json "$dir/js/installed"
fi
