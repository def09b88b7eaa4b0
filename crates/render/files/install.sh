#!/bin/sh
# Fetches the program, and keeps only what has the hash. May be run again at any time.
set -eu
@COMMAND@||{
  rm -f $p.new
  echo "the program with this hash could not be had: $p is as it was" >&2
  exit 1
}
