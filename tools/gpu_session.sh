#!/usr/bin/env bash
# Everything that needs a card, for a machine that has one and perhaps no network.
#
#   tools/gpu_session.sh [STAGE...]
#
# Stages, in this order, all but `checks` and `ranks` where none is named:
#   build        the module, the bridge and the programs below, with what is installed
#   conformance  the driver's conformance suite on the card
#   oom          out of memory through the stock door, shown
#   tests        pytest -m gpu, without the two below
#   behaviour    PyTorch's allocator behaviours, ours against native
#   programs     small real programs, ours against native
#   checks       the three above beside each other, in less than half of the time; what fails then
#                runs again alone, as some tests watch the whole card
#   stress       100,000 random operations while chunks move
#   isolation    every promise of the no-sharing mode as an attack, at each level, and known bugs
#   ranks        where there are two GPUs at least: tests that need them, then programs with a
#                process for each; RANKS="..." are arguments of `bench ranks`; only where it is named
#   sanitizer    10,000 of them under compute-sanitizer's memcheck
#   hostcost     what memory costs on the host, ours against PyTorch's; HOSTCOST="..." likewise
#   scale        the same against the number of blocks, streams, threads, bytes held
#   bench        PyTorch's allocator against ours; BENCH="..." are its arguments
# `build` always runs; it does nothing when all is built. A stage that fails or runs out of its time
# does not stop the next. Everything is logged to session.log in $OUT (build/gpu_session without
# it), where results and pictures go too. The exit code is the number of stages that failed.
#
#   PYTHON=EXE       an interpreter with torch, pybind11, pytest and hypothesis
#   GMA_GIT_ID=ID    what to write into the results where there is no repository
set -uo pipefail
cd "$(dirname "$0")/.."
python="${PYTHON:-python3}"
out="${OUT:-build/gpu_session}"
build=build/gpu
mkdir -p "$out" build
export GMA_OFFLINE=1 PYTHONUNBUFFERED=1 PATH="$PATH:/usr/local/cuda/bin"
export GMA_GIT_ID="${GMA_GIT_ID:-$(git rev-parse --short=12 HEAD 2>/dev/null)}"
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"

stage_build() {
    nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
    uname -r; ls /dev/nvidia* 2>/dev/null; "$python" --version; g++ --version | head -1
    "$python" setup.py --quiet build_ext --inplace &
    local module=$!
    cmake -S . -B "$build" -GNinja -DCMAKE_BUILD_TYPE=Release -DGMA_GPU_TESTS=ON >"$build.log" &&
        cmake --build "$build" --target test_cuda_driver gpu_stress
    local programs=$?
    wait "$module" && "$python" -m gpumem_alloc bridge build && [ "$programs" -eq 0 ]
}

stage_conformance() {
    # --no-skip: without a card these cases must fail, not vanish.
    "$build/tests/cpp/test_cuda_driver" --no-skip --no-colors "--test-case=cuda driver: a card*"
}

stage_oom() {
    "$python" - <<'PYTHON'
import torch
import gpumem_alloc

print(gpumem_alloc.enable(door="stock"))
total = torch.cuda.get_device_properties(0).total_memory
kept = torch.full((64 << 20,), 7, dtype=torch.uint8, device="cuda")
for attempt in range(3):
    try:
        torch.empty(2 * total, dtype=torch.uint8, device="cuda")
        raise SystemExit("no error was raised")
    except torch.OutOfMemoryError as error:
        print(f"{type(error).__name__}: {error}")
again = torch.full((1 << 30,), 3, dtype=torch.uint8, device="cuda")
assert int(again.sum(dtype=torch.int64)) == 3 << 30 and int(kept.min()) == 7
del again
gpumem_alloc.set_limit("1GiB")
try:
    parts = [torch.empty(100 << 20, dtype=torch.uint8, device="cuda") for _ in range(20)]
    raise SystemExit("the limit did not hold")
except torch.OutOfMemoryError as error:
    print(f"with a limit: {error}")
gpumem_alloc.audit()
assert torch.cuda.memory_stats()["num_ooms"] == 4, torch.cuda.memory_stats()["num_ooms"]
print("out of memory is raised as such, and allocation works afterwards")
PYTHON
}

pytest_gpu() { "$python" -m pytest -m gpu -q -p no:cacheprovider "$@"; }

stage_tests() { pytest_gpu --ignore=tests/test_behaviour.py --ignore=tests/test_programs.py; }

stage_behaviour() { pytest_gpu tests/test_behaviour.py; }

stage_programs() { pytest_gpu tests/test_programs.py; }

stage_checks() {
    local parts=(tests behaviour programs) name status=0
    local -A started
    local failed=() found
    for name in "${parts[@]}"; do
        bash "$0" --only "$name" >"$out/$name.txt" 2>&1 &
        started[$name]=$!
    done
    for name in "${parts[@]}"; do
        wait "${started[$name]}"
        local code=$?
        echo "$name: exit code $code: $(tail -1 "$out/$name.txt")"
        mapfile -t found < <(sed -n 's/^FAILED \([^ ]*\).*/\1/p' "$out/$name.txt")
        [ "$code" -eq 0 ] || [ "${#found[@]}" -gt 0 ] || status=1  # it broke off
        failed+=("${found[@]}")
    done
    [ "${#failed[@]}" -eq 0 ] || pytest_gpu "${failed[@]}" || status=1
    return $status
}

stage_stress() {
    local status=0 limit_mib options
    for limit_mib in 512 2048; do
        for options in "" cross_stream:lend isolation:packed isolation:tensor; do
            "$build/tests/gpu/gpu_stress" 100000 "$limit_mib" "$limit_mib" "$options" || status=1
        done
    done
    return $status
}

stage_isolation() {
    local status=0
    "$python" -m benchmarks.host.attacks --out "$out/attacks.json" || status=1
    "$python" -m tests.gpu.known_bugs --json "$out/known_bugs.json" || status=1
    return $status
}

stage_ranks() {
    local status=0
    pytest_gpu -rA -m gpus >"$out/ranks_tests.txt" 2>&1 || status=1
    grep -E "^(FAILED|ERROR)|passed|failed" "$out/ranks_tests.txt"
    # shellcheck disable=SC2086  # RANKS is several words
    "$python" -m gpumem_alloc bench ranks --out "$out/ranks.json" ${RANKS:-} | tee "$out/ranks.txt"
    [ "${PIPESTATUS[0]}" -eq 0 ] || status=1
    return $status
}

stage_sanitizer() {
    compute-sanitizer --tool memcheck --error-exitcode 9 \
        "$build/tests/gpu/gpu_stress" 10000 512 1
}

stage_hostcost() {
    # shellcheck disable=SC2086  # HOSTCOST is several words
    "$python" -m benchmarks.host.host_cost --out "$out/host_cost.json" ${HOSTCOST:-}
}

stage_scale() { "$python" -m benchmarks.host.scale --out "$out/scale.json"; }

stage_bench() {
    # shellcheck disable=SC2086  # BENCH is several words
    "$python" -m gpumem_alloc bench --require-gpu --budget 8 --pictures "$out" \
        --html "$out/report.html" --out "$out/bench.json" --resume ${BENCH:-}
}

# name seconds: a stage runs in a shell of its own, so that `timeout` can end it.
run_stage() {
    local name=$1 seconds=$2 begin=$SECONDS
    echo "== $name"
    timeout --kill-after=10 "$seconds" bash "$0" --only "$name"
    local status=$?
    echo "== $name: exit code $status after $((SECONDS - begin)) s"
    return $status
}

if [ "${1:-}" = --only ]; then
    "stage_$2"
    exit $?
fi

declare -A seconds=([build]=240 [conformance]=60 [oom]=120 [tests]=300 [behaviour]=300
                    [programs]=300 [stress]=240 [isolation]=400 [sanitizer]=240 [hostcost]=200 [scale]=150 [bench]=540
                    [checks]=420 [ranks]=480)
all=(conformance oom tests behaviour programs stress isolation sanitizer hostcost scale bench)
wanted=("$@")
[ ${#wanted[@]} -gt 0 ] || wanted=("${all[@]}")
for name in "${wanted[@]}"; do
    [ -n "${seconds[$name]:-}" ] || { echo "no stage '$name': build ${all[*]}" >&2; exit 64; }
done

failed=0
{
    run_stage build "${seconds[build]}" || failed=1
    for name in checks ranks "${all[@]}"; do
        [[ " ${wanted[*]} " == *" $name "* ]] || continue
        run_stage "$name" "${seconds[$name]}" || failed=$((failed + 1))
    done
    echo "== $failed of $((${#wanted[@]} + 1)) stages failed"
    exit "$failed"
} 2>&1 | tee -a "$out/session.log"
