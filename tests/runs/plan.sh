#!/usr/bin/env bash
# plan's memory and traffic are those that pretrain_gpt reports, on meshes of tests/tools/plan_vectors.json: memory within 5 %, traffic
# to the byte. Every fifth of them, or all with PLAN_EVERY=1.
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
python3 "$here/plan.py" "$bin" "${PLAN_EVERY:-5}" || fail "see above"
