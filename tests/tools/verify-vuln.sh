#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs govulncheck. Its database is on the network: where that cannot be reached
# the check says so and passes, since an offline build has no way to do better.
set -euo pipefail
cd "$(dirname "$0")/../.."
govulncheck=${1:?usage: verify-vuln.sh GOVULNCHECK}

status=0
said=$("$govulncheck" ./... 2>&1) || status=$?
unreachable='fetching vulnerabilities: .*(dial|proxyconnect|timeout|deadline exceeded|connection reset|EOF)'
if [ "$status" -ne 0 ] && [ "$status" -ne 3 ] && grep -Eq "$unreachable" <<<"$said"; then
	echo "verify-vuln: skipped, the vulnerability database https://vuln.go.dev cannot be reached"
	exit 0
fi
printf '%s\n' "$said"
exit "$status"
