#!/usr/bin/env bash
# Ten functions of the trainer to write again. Each lies in a copy of its file without its body, and a check tells what differs.
#
#   tutorials/write_it.sh                        lists them: the lesson, and whether you have written it
#   tutorials/write_it.sh NAME                   the first time, makes the copy and says where; then builds and checks it
#   tutorials/write_it.sh NAME --hint            one or two hints
#   tutorials/write_it.sh NAME --answer          the body as the trainer has it
#   tutorials/write_it.sh NAME --check FILE      checks another copy
#
# Copies go to runs/write_it/NAME/; delete one to begin anew. Needs a build (tutorials/quickstart.sh). ANYMESH_BIN names the
# folder of its executables, by default build/release/bin.
exec python3 "$(dirname "${BASH_SOURCE[0]}")/write_it/write_it.py" "$@"
