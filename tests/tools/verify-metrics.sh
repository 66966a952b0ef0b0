#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs promtool's linter over our own families in every golden page. The families
# named after DCGM's fields keep their foreign names, which the linter dislikes.
set -euo pipefail
cd "$(dirname "$0")/../.."
promtool=${1:?usage: verify-metrics.sh PROMTOOL}

shopt -s nullglob
pages=(tests/testdata/golden/*.prom)
if [ ${#pages[@]} -eq 0 ]; then
	echo "verify-metrics: no page in tests/testdata/golden/*.prom: nothing was checked; run 'make update'" >&2
	exit 1
fi

bad=0
for page in "${pages[@]}"; do
	own=$(grep -E '^(# (HELP|TYPE) )?gpumeter_' "$page" || true)
	if [ -z "$own" ]; then
		echo "verify-metrics: $page has no gpumeter_ family" >&2
		bad=1
		continue
	fi
	status=0
	said=$("$promtool" check metrics <<<"$own" 2>&1) || status=$?
	if [ "$status" -ne 0 ] || [ -n "$said" ]; then
		printf 'verify-metrics: %s: promtool is not silent (exit status %d):\n%s\n' "$page" "$status" "$said" >&2
		bad=1
	fi
done
exit "$bad"
