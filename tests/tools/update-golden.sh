#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Writes golden files anew: runs the tests named *Golden* with -update in every
# package that declares that flag.
set -euo pipefail
cd "$(dirname "$0")/../.."

mapfile -t packages < <(
	grep -rlE --include='*_test.go' 'flag\.Bool(Var)?\(.*"update"' cmd etc pkg tests | xargs -r -n1 dirname | sort -u
)
if [ ${#packages[@]} -eq 0 ]; then
	echo "update-golden: no package declares an -update flag"
	exit 0
fi
# One after the other: docs/metrics.md is made from the pages that come before it.
said=$(go test -p 1 -count=1 -run Golden "${packages[@]/#/./}" -update 2>&1) || { printf '%s\n' "$said" >&2; exit 1; }
printf '%s\n' "$said"
if grep -q 'no tests to run' <<<"$said"; then
	echo "update-golden: a package above declares -update, but has no test named *Golden*: its files were not written" >&2
	exit 1
fi
