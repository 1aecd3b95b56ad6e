#!/usr/bin/env bash
# Prints this machine's Pythons from 3.9 on, one of each version: the command python3.N, or else pyenv's newest.
set -euo pipefail
for minor in 9 10 11 12 13 14; do
  found=$(command -v "python3.$minor" || true)
  # A command of pyenv's may be there for a version that is not chosen.
  [[ $found ]] && "$found" -c '' 2>/dev/null || found=$(compgen -G "$HOME/.pyenv/versions/3.$minor.*/bin/python" | sort -V | tail -1 || true)
  [[ ! $found ]] || echo "$found"
done
