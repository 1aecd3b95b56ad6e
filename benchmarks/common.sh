# Sourced by the benchmarks: repository, bin = the folder of the executables ($1, default build/release/bin), and a scratch folder
# to work in that goes with the script.
set -euo pipefail
repository=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
bin=$(cd "${1:-$repository/build/release/bin}" && pwd)
scratch=$(mktemp -d "${TMPDIR:-/tmp}/anymesh-benchmark.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
