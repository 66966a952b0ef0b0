#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs every fuzz test of every module in turn, each for FUZZTIME. The go command
# fuzzes one function of one package at a time.
set -euo pipefail
cd "$(dirname "$0")/../.."

found=0
while IFS=: read -r file function; do
	found=1
	echo "== $(dirname "$file") $function"
	(cd "$(dirname "$file")" && go test -run '^$' -fuzz "^$function\$" -fuzztime "${FUZZTIME:-30s}" -fuzzminimizetime 10x .)
done < <(grep -roE --include='*_test.go' '^func Fuzz[A-Za-z0-9_]*' cmd etc pkg tests | sed 's/:func /:/' | sort)

if [ "$found" -eq 0 ]; then
	echo "fuzz: no fuzz test found" >&2
	exit 1
fi
