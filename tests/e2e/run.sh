#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Usage: run.sh PROGRAMS OUT
#
# Runs the end-to-end test with the gpumeter programs in the folder PROGRAMS and leaves logs
# and what the kubelets answered in the folder OUT. Builds Kubernetes first where the cache
# does not have it. On a machine that cannot run a node it says why, and that is no error.
set -euo pipefail

programs=$(realpath "$1")
mkdir -p "$2"
out=$(realpath "$2")
cd "$(dirname "${BASH_SOURCE[0]}")"

packages=()
command -v runc > /dev/null || packages+=(runc)
command -v busybox > /dev/null || packages+=(busybox-static)
command -v gcc > /dev/null || packages+=(gcc libc6-dev)
if [ ${#packages[@]} -gt 0 ] && [ "$(id -u)" -eq 0 ] && command -v apt-get > /dev/null; then
	echo "e2e: installing ${packages[*]}"
	{ apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${packages[@]}"; } > "$out/apt-get.log" 2>&1 ||
		echo "e2e: apt-get failed, see $out/apt-get.log"
fi

export GOFLAGS=-buildvcs=false
go test -c -o "$out/e2e.test" .
if ! why=$(GPUMETER_E2E_PLACE=probe "$out/e2e.test"); then
	echo "e2e: skipped, a Kubernetes node cannot run here: $why"
	exit 0
fi

kubernetes=$(build/build.sh)
export GPUMETER_E2E=1 GPUMETER_E2E_BIN=$kubernetes GPUMETER_E2E_PRODUCT=$programs GPUMETER_E2E_OUT=$out
exec "$out/e2e.test" -test.v -test.run '^TestRealKubelet$' -test.timeout 20m
