#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Builds the container image from the Dockerfile with the first engine that answers.
set -euo pipefail
cd "$(dirname "$0")/../.."

for engine in docker podman buildah; do
	if command -v "$engine" > /dev/null && "$engine" info > /dev/null 2>&1; then
		exec "$engine" build -t "$IMAGE:${VERSION#v}" -f Dockerfile --build-arg "VERSION=$VERSION" \
			--build-arg "REVISION=$REVISION" --build-arg "SOURCE_DATE_EPOCH=$SOURCE_DATE_EPOCH" \
			--build-arg "CREATED=$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)" .
	fi
done
echo "image-docker: no container engine: neither docker, podman nor buildah is installed and can be reached;" \
	"start one, or run 'make image', which needs none" >&2
exit 1
