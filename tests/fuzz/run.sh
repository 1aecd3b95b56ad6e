#!/usr/bin/env bash
# Runs every fuzzer for FUZZ_SECONDS (60), one per core at a time, from a fixed seed and the fixtures:
#   FUZZ_SECONDS=600 tests/fuzz/run.sh [target...]
# Prints a summary of each. An input that crashes a fuzzer, or takes 10 s or 512 MiB, is kept in build/fuzz/found/TARGET. Fix
# the reader and move the file to tests/fuzz/crashes/TARGET; the ordinary tests replay it from there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

cmake --preset asan >build/fuzz.log
cmake --build --preset fuzz >>build/fuzz.log || { tail -40 build/fuzz.log; exit 1; }
python3 tests/fuzz/seeds.py build/fuzz/seeds

# The memory limit is for one input. By default ASan keeps the freed memory of earlier inputs, 256 MB in quarantine and as much
# in unreturned pages. A long run of harmless inputs would exceed the limit.
export ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}quarantine_size_mb=16:allocator_release_to_os_interval_ms=0"

targets=("$@")
((${#targets[@]})) || targets=(pickle torch_file indexed_dataset safetensors deepspeed_json tokenizer_json tiktoken)

fuzz() {
  local target=$1 log=build/fuzz/$1.log found=build/fuzz/found/$1/ seconds=${FUZZ_SECONDS:-60}
  [[ $target != tokenizer_json ]] || seconds=$((2 * seconds))  # the largest of the readers
  rm -rf "build/fuzz/corpus/$target"  # start from an empty corpus, so that every run is the same
  mkdir -p "$found" "build/fuzz/corpus/$target"
  if build/asan/bin/fuzz_"$target" -seed=1 -max_total_time="$seconds" -max_len=16384 -timeout=10 \
      -malloc_limit_mb=128 -rss_limit_mb=512 -print_final_stats=1 -artifact_prefix="$found" \
      "build/fuzz/corpus/$target" "build/fuzz/seeds/$target" >"$log" 2>&1; then
    printf '%-16s %9d executions, %5d edges covered, %4d MB at most, no crash\n' "$target" \
        "$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")" \
        "$(grep -o 'cov: [0-9]*' "$log" | tail -1 | cut -d' ' -f2)" "$(sed -n 's/^stat::peak_rss_mb: *//p' "$log")"
  else
    tail -40 "$log"
    printf '%-16s CRASHED: see %s and %s\n' "$target" "$log" "$found"
    return 1
  fi
}
export -f fuzz
printf '%s\n' "${targets[@]}" | xargs -P "$(nproc)" -I{} bash -c 'fuzz {}'
