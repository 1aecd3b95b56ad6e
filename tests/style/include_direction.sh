#!/usr/bin/env bash
# Checks that includes point only downwards, so that every part can be read, and most can be built, without the parts above. The
# list has the lowest area first. A line names the areas that an area may include, and whether it avoids LibTorch and MPI.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

areas='
parse_number       no-torch
peak_memory        no-torch
printed            no-torch
printable          no-torch
shell_word         no-torch
input_file         no-torch
process_limits     no-torch
standard_output    no-torch
nearest_name       no-torch
format             no-torch  printed printable input_file
config             no-torch  parse_number printable input_file nearest_name
data               no-torch  parse_number printable input_file format
mesh               no-torch
comm               torch     mesh printed printable
device             torch     comm config cuda
lanes              torch
outlet             no-torch
cuda               torch     comm optim random printed
random             torch     lanes cuda
kernels            torch     lanes outlet random cuda
optim              torch     lanes outlet cuda
memory             torch
storage            torch
param_spec         torch     comm random storage
offload            torch
profile            torch     comm format printed
tensor_parallel    torch     comm param_spec kernels
pipeline           torch     mesh comm param_spec random
zero               torch     comm param_spec optim format pipeline memory storage offload printed
checkpoint         torch     comm param_spec optim zero pipeline config format storage offload cuda printed printable shell_word
engine             torch     comm pipeline zero checkpoint
event_file         no-torch  format
progress_bar       no-torch
log                torch     comm format engine event_file peak_memory progress_bar printed printable input_file
datasets           torch     config data
micro_batches      torch     comm pipeline data
interruption       torch     comm
launch             torch     comm parse_number printed printable
trainer            torch     checkpoint comm engine interruption micro_batches config data log profile printed
engine_flags       torch     checkpoint config
pretrain           torch     checkpoint comm config data datasets device engine engine_flags interruption memory pipeline trainer zero log profile process_limits printable launch standard_output
gpt_config         no-torch  config
models             torch     mesh comm param_spec random kernels tensor_parallel pipeline config gpt_config
tools              no-torch  format config data gpt_config mesh parse_number peak_memory process_limits printed printable input_file standard_output nearest_name shell_word
generate           torch     comm checkpoint format config data models tools gpt_config parse_number printable
'

# violations: reads "file:#include ..." lines and prints a message for each that points the wrong way.
violations() {
  awk -v areas="$areas" '
    function area(path) {
      if (path ~ /^framework\/checkpoint\/format\//) return "format"
      if (path ~ /^framework\/data\/datasets\./) return "datasets"
      if (path ~ /^framework\/(comm\/topology|pipeline\/schedule)\.h/) return "mesh"
      if (path == "framework/torch.h") return "torch.h"
      if (path ~ /^framework\//) { sub(/^framework\//, "", path); sub(/[\/.].*/, "", path); return path }
      if (path ~ /^models\/gpt\/gpt_(config|names)\./) return "gpt_config"
      if (path ~ /^tools\/generate/) return "generate"
      if (path ~ /^(models|tools|tests)\//) { sub(/\/.*/, "", path); return path }
      return path
    }
    BEGIN {
      n = split(areas, lines, "\n")
      for (i = 1; i <= n; ++i) {
        m = split(lines[i], word, " ")
        if (m == 0) continue
        known[word[1]] = 1
        if (word[2] == "no-torch") plain[word[1]] = 1
        for (j = 3; j <= m; ++j) allowed[word[1], word[j]] = 1
      }
    }
    {
      file = include = $0
      sub(/:.*/, "", file)
      sub(/^[^:]*:[ \t]*#[ \t]*include[ \t]*/, "", include)
      from = area(file)
      if (from == "torch.h") next
      if (!(from in known)) { print file ": " from " is not in the list of areas of this test"; next }
      if (include ~ /^<(torch|ATen|c10|caffe2)\// || include ~ /^<mpi/) {
        if (from in plain) print file ": " include ", but " from " is built without LibTorch and MPI"
        next
      }
      if (include !~ /^"/) next
      sub(/^"/, "", include)
      sub(/".*/, "", include)
      to = area(include)
      if (to != from && !((from, to) in allowed)) print file ": includes " include ", but " from " lies below " to " or beside it"
    }'
}

includes() { grep -rnE '^[ 	]*#[ 	]*include' --include='*.h' --include='*.cpp' framework models tools | sed -E 's/^([^:]*):[0-9]+:/\1:/'; }

# Tests this test: each line of the first list is one violation, the second list has none.
bad='framework/comm/x.h:#include "framework/zero/zero_optimizer.h"
framework/zero/x.cpp:#include "models/gpt/gpt_model.h"
framework/checkpoint/format/x.h:#include <torch/types.h>
framework/data/x.cpp:#include <mpi.h>
tools/x.cpp:#include "framework/trainer.h"
models/gpt/x.cpp:#include "tests/support/dense_gpt.h"
framework/new_part/x.h:#include <vector>'
good='framework/zero/x.h:#include "framework/comm/process_grid.h"
framework/comm/x.cpp:#include <mpi.h>
models/gpt/x.cpp:#include "models/gpt/gpt_model.h"  // a comment
tools/x.cpp:#include <vector>'
[[ $(violations <<<"$bad" | wc -l) == 7 && -z $(violations <<<"$good") ]] ||
  { echo "FAIL: this test does not see planted violations as it should"; violations <<<"$bad"$'\n'"$good"; exit 1; }

found=$(includes | violations)
if [[ -n $found ]]; then
  printf '%s\n' "$found"
  exit 1
fi
echo "ok: $(includes | grep -c '#include "') includes point downwards"
