#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds the container image with the first engine that answers.
set -euo pipefail
cd "$(dirname "$0")/../.."
image=${1:?usage: image.sh IMAGE VERSION REVISION}
version=${2:?usage: image.sh IMAGE VERSION REVISION}
revision=${3:?usage: image.sh IMAGE VERSION REVISION}

for engine in docker podman buildah; do
	if command -v "$engine" >/dev/null && "$engine" info >/dev/null 2>&1; then
		exec "$engine" build -t "$image" -f Dockerfile \
			--build-arg "VERSION=$version" --build-arg "REVISION=$revision" .
	fi
done
echo "image: no container engine: neither docker, podman nor buildah is installed and can be reached;" \
	"start one, then run 'make image' again" >&2
exit 1
